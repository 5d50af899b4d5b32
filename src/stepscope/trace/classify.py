"""Classifies names, and events by their metadata.

`kind` is the part of the step breakdown that an event belongs to (see `schema.Kind`). `group` is
finer and also covers host names, so that analyses never match names themselves. Rules are ordered,
and the first match wins. Patterns match anywhere in the name and ignore case unless they say
otherwise. Only distinct names are classified, never single events.

Groups of GPU work
    compute: gemm, convolution, attention, normalisation, softmax, elementwise, reduction,
    optimizer, embedding, pooling, loss, random, recurrent, sort_scan_index, triton (a kernel fused
    by the PyTorch compiler), other.
    communication: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather,
    scatter, send_recv, barrier, expert_dispatch, expert_combine, collective (unknown operation).
    memcpy: host_to_device, device_to_host, device_to_device, peer, host_to_host, copy (unknown
    direction). memset: fill.

Groups of host names (kind "none"; null if no rule matches)
    profiler_step, dataloader, optimizer_step, forward, backward, the communication groups, and for
    operators the compute groups. For runtime and driver calls: launch, sync, allocation, copy_call,
    fill_call, stream_wait, event, module_load, graph, host_function.
"""

from __future__ import annotations

import polars as pl

from stepscope.trace.arguments import COLLECTIVE_ARGUMENTS
from stepscope.trace.categories import HOST_CALLS
from stepscope.trace.known_names import KnownNames
from stepscope.trace.schema import KIND, Category, Kind

Rules = tuple[tuple[str, str], ...]
"""Pairs of pattern and group, in order of precedence."""

_COLLECTIVES: Rules = (
    (r"all[-_]?reduce", "all_reduce"),
    (r"all[-_]?gather", "all_gather"),
    (r"reduce[-_]?scatter", "reduce_scatter"),
    (r"all[-_]?to[-_]?all|all2all", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"send|recv|p2p|collective-permute", "send_recv"),
    (r"barrier", "barrier"),
    (r"scatter", "scatter"),
    (r"gather", "gather"),
    (r"reduce", "reduce"),
)
"""Operations of names that are known to be communication."""

COLLECTIVE_NAME = f'"{COLLECTIVE_ARGUMENTS["collective"]}"'
"""Occurs in the arguments of kernels whose metadata marks them as communication."""

COLLECTIVE_GROUPS: tuple[str, ...] = (
    *(group for _, group in _COLLECTIVES),
    "expert_dispatch",
    "expert_combine",
    "collective",
)
"""All communication groups; "collective" stands for an unknown operation."""

COMPUTE_GROUPS: tuple[str, ...] = (
    "gemm",
    "convolution",
    "attention",
    "normalisation",
    "softmax",
    "elementwise",
    "reduction",
    "optimizer",
    "embedding",
    "pooling",
    "loss",
    "random",
    "recurrent",
    "sort_scan_index",
)
"""The groups of computing kernels that operators have too."""

DRAWS = r"^aten::(bernoulli|normal|uniform|random|exponential|geometric|cauchy|log_normal|rand)"
"""Operators that draw random numbers."""

MATRIX_GROUPS = ("gemm", "convolution", "attention")
"""The groups that consist of matrix products."""

UNKNOWN_KERNEL = "other"
"""The group of computing kernels whose name no rule knows."""

_COMPILED = r"^triton_(_\d|\d|fused_|poi|red|per|for|tem|mm|unk|spl|split_scan|mix|cooperative)"
"""Kernels of the PyTorch compiler; before 2.1 their names had only their arguments
(`triton__0d1d2d`)."""

_FUSED_IN = r"_fused_(.*?)_?\d*$"
_FUSED: Rules = (
    (r"softmax", "softmax"),
    (r"norm(_|$)|normalization|rsqrt", "normalisation"),
    (r"loss|cross_entropy", "loss"),
    (r"embedding", "embedding"),
    (r"dropout|rand|bernoulli", "random"),
    (r"sort|topk|index|gather|scatter|cumsum", "sort_scan_index"),
    (r"(^|_)(sum|mean|amax|amin|max|min|var|prod|any|all|argmax|argmin)(_|$)", "reduction"),
)
"""What a compiled kernel's fused operators amount to, the costliest first."""
_REDUCING = r"^triton_(red|per|mix|cooperative|split_scan)"

_COMMUNICATION_LIBRARY = (
    r"nccl|rccl|msccl|hccl|^hcom_|oneccl|\bccl(::|_)|sycl_(all|reduce)|nvshmem|rocshmem"
    r"|deep_ep(::|\d)|multimem_|cross_device_reduce|(one|two)_shot_|quickreduce"
    r"|allreduce_prototype|(?-i:\w::(dispatch|combine)[<(])|(^|\W)ucc_|ucc_(tl|ec|mc)_"
    # NVSHMEM's own kernels on streams, torch's symmetric memory, Triton-distributed.
    r"|(sync|barrier|broadcast|alltoall|fcollect)(all|mem)?_on_stream_kernel|symmetric_memory"
    r"|(put|wait)_signal_kernel|triton_dist|barrier_(all|on_this)_(intra|inter|grid)"
    r"|kernel_(dispatch|combine)_token|ring_reduce"
    # Expert parallelism: DeepEP without its namespace, MORI, Hybrid-EP, UCCL, TensorRT-LLM's MoE.
    r"|(cached_)?notify_(dispatch|combine)|cached_notify|clean_low_latency_buffer"
    r"|\bmori(::|_)|Ep(Dispatch|Combine)(IntraNode|InterNode|LowLatency)|\buccl(::|_)"
    r"|hybrid_ep(::|\d)\S*(dispatch|combine|sync)|moe_?a2a"
)
_LOCAL_WORK_OF_LIBRARIES = r"deep_ep(::|\d+)layout"
"""Kernels of communication libraries that only compute: counting tokens per expert."""
_COMMUNICATION_WORD = (
    r"all_?reduce|all_?gather_?(kernel|into)|reduce_?scatter|all_?to_?all|all2all"
    # XLA's words.
    r"|^(all-(reduce|gather|to-all)|reduce-scatter|collective-(permute|broadcast))"
)

_KERNELS_OF_COMMUNICATION: Rules = (
    (r"clean_low_latency_buffer|cached_notify([^_]|$)", "barrier"),
    (
        (
            r"(deep_ep|notify|hybrid_ep|moe_?a2a|Ep)\S*?dispatch|(?-i:\w::dispatch[<(])"
            r"|kernel_dispatch_token"
        ),
        "expert_dispatch",
    ),
    (
        (
            r"(deep_ep|notify|hybrid_ep|moe_?a2a|Ep)\S*?combine|(?-i:\w::combine[<(])"
            r"|kernel_combine_token"
        ),
        "expert_combine",
    ),
    (r"ring_reduce", "reduce_scatter"),
    (r"fcollect", "all_gather"),
    (r"syncall_on_stream|sync_on_stream|(put|wait)_signal", "barrier"),
    (r"cross_device_reduce|quickreduce|allreduce_prototype", "all_reduce"),
    # Matched against the part before the arguments, whose types may contain "Broadcast".
    *_COLLECTIVES,
)

_COPIES: Rules = (
    (r"PtoP|peer", "peer"),
    (r"HtoD|Host_?To_?Device|HtoA|HostToArray", "host_to_device"),
    (r"DtoH|Device_?To_?Host|AtoH", "device_to_host"),
    (r"DtoD|Device_?To_?Device|[AD]to[AD]", "device_to_device"),
    (r"HtoH|Host_?To_?Host", "host_to_host"),
)

_STARTED_BY_DEVICE = r"(^|[^a-z])dma_request"
"""MTIA's copies between its memories, which no call of the host launches."""

# ROCm before 7.2 records copies and fills by its runtime as kernels.
_KERNELS_THAT_COPY = (
    r"^(__amd_rocclr_copy|MEMORY_COPY_|Copy(Host|Device|Peer)|Memcpy )|" + _STARTED_BY_DEVICE
)
_KERNELS_THAT_FILL = r"^(__amd_rocclr_fill|Memset )"

_QUANTISES = r"^(void )?([\w:]*::)?_*(de|re)?quanti[sz]e"

_KERNELS: Rules = (
    (_QUANTISES, "elementwise"),
    (r"^triton_tem.*(_|\b)(mm|bmm|addmm|baddbmm|mm_plus_mm)(_|\b)", "gemm"),
    (r"^triton_tem.*(attention|sdpa)", "attention"),
    (r"^triton_tem.*convolution", "convolution"),
    (_COMPILED, "triton"),
    (
        (
            r"flash_?(fwd|bwd|attn)|flash::|flashinfer|fmha|attention|_attn|attn_|sdpa|aotriton"
            r"|bwd_kernel_d(k|q)|BatchPrefill|BatchDecode|(^|_)mha_"
        ),
        "attention",
    ),
    (
        (
            r"embedding|_embs_|EmbeddingBag|recat_|bounds_check_indices|linearize_index|jagged"
            r"|block_bucketize|fbgemm_gpu::|dense_representation"
        ),
        "embedding",
    ),
    (
        (
            r"multi_tensor_apply|FusedOptimizer|(fused|multi_tensor)_?(adam|sgd|lamb|adagrad)"
            r"|adamw?_?(cuda|functor|kernel)|lamb_?stage|_lion_|muon"
        ),
        "optimizer",
    ),
    (
        r"_loss|loss_|(?-i:[a-z]Loss)|cross_?entropy|kl_div|mse_kernel|huber|NLLCriterion",
        "loss",
    ),
    (r"soft_?max|softmin", "softmax"),
    (
        (
            r"(batch|layer|group|instance|rms)_?norm|bn_(fw|bw)_|cudnn::bn|RowwiseMoments|GammaBeta"
            r"|ComputeFusedParams|ComputeInternalGradients|norm_(fwd|bwd|forward|backward)"
        ),
        "normalisation",
    ),
    (r"max_?pool|avg_?pool|average_?pool|pooling|poolfw|poolbw|adaptive.*pool", "pooling"),
    (r"\brnn|_rnn|lstm|\bgru|gru_|RNN_", "recurrent"),
    (
        (
            r"conv([^e]|$)|convol|winograd|dgrad|wgrad|fprop|implicit_?gemm|_[sh]?cudnn_|im2col|col2im"
            r"|depthwise|igemm_(fwd|bwd|wrw)|n(chw|hwc)ToN(chw|hwc)|^batched_transpose_\d|SubTensorOp"
            r"|miopenSp|^cudnn::|void cudnn::|cask_cudnn|_(NCHW|CNHW|NHWC)2|SubSample"
        ),
        "convolution",
    ),
    (
        (
            r"gemm|gemv|nvjet|cublas|^dot(_general)?(\.\d+)?$|^Cijk_|splitK|matmul|(^|_)b?mm_|cutlass.*tensorop|wmma|hipblas"
            r"|rocblas|dot_kernel|marlin|epilogue::impl|grouped_mm|scaled_mm"
        ),
        "gemm",
    ),
    (
        r"distribution_|random|dropout|bernoulli|curand|randperm|multinomial|generate_seed",
        "random",
    ),
    # MTIA's names are words: fc is a fully connected layer, tbe a table-batched embedding.
    (r"(^|[^a-z])((batch_)?fc|fully_?connected)([^a-z]|$)", "gemm"),
    (r"(^|[^a-z])tbe([^a-z]|$)", "embedding"),
    (r"with_index|arange|linspace", "elementwise"),
    (
        (
            r"sort|get_dispatch_layout|DeviceScan|_scan|scan_|topk|kthvalue|median|index|searchsorted|histogram|bincount"
            r"|cumsum|cumprod|unique|nonzero|DeviceSelect|DevicePartition|gather|scatter"
            r"|take_(put|along)|ReduceByKey|RunLength|DeviceCompact|SegmentedSort|cumulative|offsets"
        ),
        "sort_scan_index",
    ),
    (r"elementwise|CatArray|TensorTransform|OpTensor|Op\dd?Tensor|pointwise", "elementwise"),
    (r"reduce|reduction|welford|argm(ax|in)|norm_kernel|DeviceSum|_sum_|warp_?sum", "reduction"),
    (
        (
            r"copy|fill|transpose|permute|cast|convert|quanti[sz]e|rotary|rope|activation|gelu|silu"
            r"|swiglu|relu|upsample|interpolat|triu|tril|scale|unpack|pack_|concat|split|slice|clamp"
            r"|nonfinite|amp_(foreach|update)|vectorized|kernelPointwise|for_each"
            r"|parallel_for|transform_kernel|roll_|flip_"
        ),
        "elementwise",
    ),
)

_CALLS: Rules = (
    (r"LaunchHostFunc", "host_function"),
    (r"Launch|EnqueueKernel", "launch"),
    (r"Synchronize|QueueFinish|urEventWait$|piEventsWait", "sync"),
    (r"Memcpy|MemoryCopy|BufferCopy|BufferRead|BufferWrite", "copy_call"),
    (r"Memset|USMFill|BufferFill|MemsetD\d", "fill_call"),
    (
        (
            r"Malloc|Mem(ory)?Alloc|HostAlloc|USM(Host|Device|Shared)Alloc|Mem(ory)?(Create|Map|Unmap"
            r"|Release|Pool|AddressReserve|AddressFree|SetAccess)|HostRegister|HostUnregister"
            r"|Free(Async|Host|Array)?(_v\d+)?$|MemGetInfo"
        ),
        "allocation",
    ),
    (r"StreamWait(Event|Value)|WaitExternalSemaphores", "stream_wait"),
    (r"Event(Record|Query|Create|Destroy|Elapsed)", "event"),
    (
        (
            r"Module(Load|Create|GetFunction|Unload)|LibraryLoad|LibraryGetKernel|LinkComplete"
            r"|Program(Build|Compile|Create|Link)"  # SYCL, OpenCL and Level Zero
        ),
        "module_load",
    ),
    (r"Graph|Capture", "graph"),
)

_COLLECTIVE_CALL = (
    r"^(nccl|gloo|mpi|ucc|xccl|hccl|rccl|ccl|c10d|_c10d_functional)(::?|_functional)"
    r"|(?-i:^nccl[A-Z])"
)

_HOST_BEFORE_COLLECTIVES: Rules = (
    (r"^ProfilerStep(#|\*)", "profiler_step"),
    (
        (
            r"^stepscope\.data_wait$|enumerate\((DataLoader|DataPipe)\)#|DataLoaderIter\.__next__"
            r"|dataloader\.py\(\d+\): "
            r"(__next__|_next_data|_try_get_data|_get_data)|^#{0,2} ?(load_batch|wait_for_batch)\b"
        ),
        "dataloader",
    ),
    (r"^Optimizer\.(step|zero_grad)#|^#{0,2} ?(optimizer|zero_grad) ?#{0,2}$", "optimizer_step"),
    (r"autograd::engine::evaluate_function|^#{0,2} ?backward ?#{0,2}$", "backward"),
    (r"^#{0,2} ?forward ?#{0,2}$|(Distributed|FullySharded)DataParallel\.forward$", "forward"),
)

_OPERATORS: Rules = (
    (r"aten::(_scaled_|_grouped_|_int_)?(mm|addmm|bmm|baddbmm|addbmm|matmul|linear)\b", "gemm"),
    (r"aten::(addmv|mv|dot|vdot|einsum|_addmm_activation|_scaled_grouped_mm)\b", "gemm"),
    (r"attention|sdpa|flash_attn", "attention"),
    (r"aten::.*(convolution|conv[123]d|conv_transpose|conv_depthwise)", "convolution"),
    (r"aten::.*(batch|layer|group|instance|rms)_norm", "normalisation"),
    (r"aten::.*(softmax|softmin)", "softmax"),
    (r"aten::.*pool[123]d", "pooling"),
    (r"aten::.*(_loss|cross_entropy|kl_div)", "loss"),
    (r"embedding", "embedding"),
    (r"aten::(_foreach_|_fused_)", "optimizer"),
    (r"aten::(dropout|native_dropout|rand|bernoulli|uniform_|normal_|exponential_)", "random"),
    (r"aten::.*(lstm|gru|rnn)", "recurrent"),
    (
        (
            r"^aten::(sort|argsort|msort|topk|kthvalue|median|nonzero|unique\w*|searchsorted|take\w*"
            r"|bucketize|histc|bincount|masked_select|(_?index|gather|scatter|cum)\w*|put_?)$"
        ),
        "sort_scan_index",
    ),
    (
        (
            r"^aten::_?(nan)?(sum|mean|prod|std|var|std_mean|var_mean|max|min|amax|amin|aminmax"
            r"|argmax|argmin|any|all|norm|linalg_vector_norm|logsumexp|count_nonzero)$"
        ),
        "reduction",
    ),
    (
        (
            r"^aten::_?((foreach_)?(add|sub|rsub|mul|div|neg|pow|sqrt|rsqrt|exp|log|log1p|abs|sign"
            r"|reciprocal|sin|cos|floor|ceil|round|remainder|fmod|lerp|addcmul|addcdiv|erf|square"
            r"|maximum|minimum|where|clamp\w*|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|isnan|isinf"
            r"|relu6?|gelu|silu|mish|elu|selu|celu|sigmoid|tanh|softplus|hard\w+|leaky_relu|prelu"
            r"|threshold|glu|sigmoid_backward|tanh_backward|\w*(relu|gelu|silu|elu|glu)_backward"
            r"|threshold_backward|masked_(fill|scale)\w*|copy|to_copy|copy_from|clone|contiguous|fill"
            r"|zero|cat|stack|arange|linspace|triu|tril|flip|roll|repeat|upsample\w*"
            r"|constant_pad_nd|reflection_pad\w*|replication_pad\w*)_?)$"
        ),
        "elementwise",
    ),
)

_ALIKE = r"(_?(v\d+|fwd|bwd|forward|backward|out|bias|relu|gelu|silu|act))*$"
_OPERATORS_BY_WORD: Rules = (
    (
        r"(^|::|_)(linear|fully_?connected|fc|(batch_?)?mat_?mul|b?mm|addmm|gemm)" + _ALIKE,
        "gemm",
    ),
    (r"(^|::|_)conv(olution)?([123]d)?" + _ALIKE, "convolution"),
    (r"(^|::|_)(batch|layer|group|instance|rms)_?norm" + _ALIKE, "normalisation"),
    (r"(^|::|_)softmax" + _ALIKE, "softmax"),
)
"""Operators of other namespaces, such as `npu::npu_linear`, by the word that their name ends in.
Only operators: a range of the user's may have any name."""

_HOST_OPERATORS = (Category.CPU_OP, Category.USER_ANNOTATION, Category.GPU_USER_ANNOTATION)


def _first_match(text: pl.Expr, rules: Rules, otherwise: str | None) -> pl.Expr:
    # All letters of Unicode would make a pattern of a megabyte, which takes milliseconds to build.
    matches = [
        pl.when(text.str.contains("(?i)" + pattern.replace(r"\w", "[0-9A-Za-z_]"))).then(
            pl.lit(group)
        )
        for pattern, group in rules
    ]
    return pl.coalesce(*matches, pl.lit(otherwise, pl.String))


def _kernel_kind(name: pl.Expr) -> pl.Expr:
    compiled = name.str.contains(_COMPILED)
    communicates = name.str.contains(
        f"(?i){_COMMUNICATION_LIBRARY}|{_COMMUNICATION_WORD}"
    ) & ~name.str.contains(f"(?i){_LOCAL_WORK_OF_LIBRARIES}")
    return (
        pl.when(name.str.contains(f"(?i){_KERNELS_THAT_COPY}"))
        .then(pl.lit(Kind.MEMCPY.value))
        .when(name.str.contains(f"(?i){_KERNELS_THAT_FILL}"))
        .then(pl.lit(Kind.MEMSET.value))
        .when(communicates & ~compiled)
        .then(pl.lit(Kind.COMMUNICATION.value))
        .otherwise(pl.lit(Kind.COMPUTE.value))
    )


def _classify_part(part: pl.DataFrame, category: str) -> pl.DataFrame:
    name = pl.col("name").fill_null("")
    kind = pl.lit(Kind.NONE.value)
    group = pl.lit(None, pl.String)
    if category == Category.KERNEL.value:
        part = part.with_columns(_kernel_kind(name).alias("kind"))
        pieces = []
        for (found,), rows in part.group_by(["kind"], maintain_order=True):
            pieces.append(rows.with_columns(_kernel_group(name, str(found)).alias("group")))
        return pl.concat(pieces)
    if category == Category.GPU_MEMCPY.value:
        kind, group = pl.lit(Kind.MEMCPY.value), _first_match(name, _COPIES, "copy")
    elif category == Category.GPU_MEMSET.value:
        kind, group = pl.lit(Kind.MEMSET.value), pl.lit("fill")
    elif category in {c.value for c in HOST_CALLS}:
        group = _first_match(name, _CALLS, None)
    elif category in {c.value for c in _HOST_OPERATORS}:
        collective = name.str.contains(f"(?i){_COLLECTIVE_CALL}") | (name == "record_param_comms")
        group = pl.coalesce(
            _first_match(name, _HOST_BEFORE_COLLECTIVES, None),
            pl.when(collective).then(_first_match(name, _COLLECTIVES, "collective")),
            _first_match(name, _OPERATORS, None),
        )
        if category == Category.CPU_OP.value:
            group = pl.coalesce(group, _first_match(name, _OPERATORS_BY_WORD, None))
    elif category == Category.PYTHON_FUNCTION.value:
        group = _first_match(name, _HOST_BEFORE_COLLECTIVES[1:2], None)
    elif category == Category.DEVICE_SYNC.value:
        group = pl.lit("sync")
    elif category == Category.COLLECTIVE.value:
        group = _first_match(name, _COLLECTIVES, "collective")
    return part.with_columns(kind.alias("kind"), group.alias("group"))


def _kernel_group(name: pl.Expr, kind: str) -> pl.Expr:
    if kind == Kind.MEMCPY.value:
        return _first_match(name, _COPIES, "copy")
    if kind == Kind.MEMSET.value:
        return pl.lit("fill")
    if kind == Kind.COMMUNICATION.value:
        stem = pl.coalesce(name.str.extract(r"^([^(<]*(?:ccl|reduce|gather|all)[^(<]*)"), name)
        return _first_match(stem, _KERNELS_OF_COMMUNICATION, "collective")
    return _first_match(name, _KERNELS, UNKNOWN_KERNEL)


def classify_names(names: pl.DataFrame) -> pl.DataFrame:
    """Adds or replaces the columns `kind` and `group` of a table of names.

    Args:
        names: A table with at least `name` and `category` (see `schema.NAMES`).

    Returns:
        The same rows in the same order.
    """
    found = _KNOWN.of(names)
    others = names[[column for column in names.columns if column not in ("kind", "group")]]
    return others.with_columns(
        pl.Series("kind", [kind for kind, _ in found], dtype=KIND),
        pl.Series("group", [group for _, group in found], dtype=pl.String),
    )


def _kinds_and_groups(names: pl.DataFrame) -> list[tuple[str, str | None]]:
    rows = names.select("name", "category").with_row_index("row")
    parts = [
        _classify_part(part, str(category))
        for (category,), part in rows.group_by(["category"], maintain_order=True)
    ]
    return pl.concat(parts).sort("row").select("kind", "group").rows() if parts else []


_KNOWN = KnownNames(_kinds_and_groups, "category", "name")


def collective_group(word: pl.Expr) -> pl.Expr:
    """Returns the group of a collective from a word such as "allreduce" or "_allgather_base".

    Accepts the metadata `Collective name` and the names of c10d operations.
    """
    return _first_match(word, _COLLECTIVES, "collective")


def is_started_by_device(name: pl.Expr) -> pl.Expr:
    """Whether GPU work of this name is started by the device itself: it has no launch by nature."""
    return name.str.contains(f"(?i){_STARTED_BY_DEVICE}")


def is_compiled_kernel(name: pl.Expr) -> pl.Expr:
    """Whether a kernel of this name was made by the PyTorch compiler."""
    return name.str.contains(_COMPILED).fill_null(value=False)


def group_of_fused(name: pl.Expr) -> pl.Expr:
    """What a kernel of the PyTorch compiler amounts to, by the operators that it fuses.

    Returns:
        A group of computing kernels; null for other names, and where the name tells nothing.
    """
    fused = name.str.extract(_FUSED_IN)
    rest = (
        pl.when(name.str.contains(_REDUCING))
        .then(pl.lit("reduction"))
        .otherwise(pl.lit("elementwise"))
    )
    return pl.when(name.str.contains(_COMPILED) & fused.is_not_null()).then(
        pl.coalesce(_first_match(fused, _FUSED, None), rest)
    )


def classify_by_metadata(kernels: pl.DataFrame) -> pl.DataFrame:
    """Finds the kernels whose metadata marks them as communication.

    Metadata takes precedence over names: RCCL kernels are often just `ncclDevKernel_Generic`, and
    the names of a new library may be unknown, but torch writes `Collective name` into the
    arguments.

    Args:
        kernels: `event` and `args` (JSON text) of events of category `kernel`.

    Returns:
        `event`, `kind` and `group` of the kernels found.
    """
    if kernels.is_empty():
        return pl.DataFrame(schema={"event": pl.Int64, "kind": KIND, "group": pl.String})
    word = pl.col("args").str.extract(rf'{COLLECTIVE_NAME}\s*:\s*"([^"]+)"')
    return (
        kernels.lazy()
        .filter(pl.col("args").str.contains(COLLECTIVE_NAME, literal=True))
        .select("event", word.alias("word"))
        .filter(pl.col("word").is_not_null())
        .select(
            "event",
            pl.lit(Kind.COMMUNICATION.value).cast(KIND).alias("kind"),
            collective_group(pl.col("word")).alias("group"),
        )
        .collect()
    )
