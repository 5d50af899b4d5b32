"""Synthetic training runs on a GPU, each with known bottlenecks planted, or with none.

`SCENARIOS` is the labelled set: a builder and the ids of the findings that it must give, no more
and no fewer. Most vary one healthy step, which keeps the GPU busy with large matrix products.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.gpu_trace import GpuTrace, ms, us

STEPS = 4
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
PLAIN = "ampere_sgemm_128x64_tn"
SMALL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
HALF = ["c10::BFloat16", "c10::BFloat16"]
# 550 GFLOP: in 900 µs an H100 attains 62% of its peak, as large products do.
MM = {"shapes": [[8192, 4096], [4096, 8192]], "types": HALF}
MM_FLOAT = {"shapes": [[8192, 4096], [4096, 4096]], "types": ["float", "float"]}


@dataclass(frozen=True)
class Scenario:
    """A trace with a label.

    Attributes:
        name: What was planted.
        build: Builds the trace.
        expected: Ids of its findings.
    """

    name: str
    build: Callable[[], GpuTrace]
    expected: frozenset[str]


def products(t: GpuTrace, count: int = 10, length: int = us(900), name: str = GEMM, **operands):
    """Large matrix products, which keep the GPU busy while the host runs ahead."""
    for _ in range(count):
        t.op("aten::mm", **(operands or MM)).launch(name, length)


def optimizer(t: GpuTrace):
    with t.annotate("Optimizer.step#AdamW.step"):
        t.op("aten::_fused_adamw_").launch(
            "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>", us(300)
        )


def job(
    body: Callable[[GpuTrace, int], None], steps: int = STEPS, memory: int = 55 << 30, **options
) -> GpuTrace:
    """Steps with a body, a fused optimizer and memory that is used well."""
    t = GpuTrace(**{"memory_bytes": 80 << 30, **options})
    t.memory(memory)
    # The GPU still has work of earlier steps when the first recorded one begins.
    products(t)
    for number in range(steps):
        with t.step():
            body(t, number)
            optimizer(t)
    t.sync()
    return t


def healthy(t: GpuTrace, _step: int) -> None:
    t.data_wait(us(30))
    t.op("aten::to").copy("HtoD", 1 << 20, us(60), pinned=True)
    products(t)


def _with(before: Callable[[GpuTrace, int], object]) -> Callable[[GpuTrace, int], None]:
    def body(t: GpuTrace, step: int) -> None:
        before(t, step)
        healthy(t, step)

    return body


def _slow_loader() -> GpuTrace:
    return job(lambda t, s: (t.data_wait(ms(16)), products(t)))


def _slow_loader_without_annotations() -> GpuTrace:
    """The autograd thread launches most, and nobody marks the steps."""

    def body(t: GpuTrace, _step: int) -> None:
        t.data_wait(ms(16))
        products(t, 4)
        with t.thread(), t.op("autograd::engine::evaluate_function: MmBackward0"):
            products(t, 8)

    return job(body, annotate_steps=False)


def _accumulation_without_annotations() -> GpuTrace:
    t = GpuTrace(memory_bytes=80 << 30, annotate_steps=False)
    t.memory(55 << 30)
    for number in range(16):
        t.data_wait(ms(12))
        products(t, 5)
        with t.thread(), t.op("autograd::engine::evaluate_function: MmBackward0"):
            products(t, 5)
        if number % 4 == 3:
            optimizer(t)
    t.sync()
    return t


def _ranges_of_a_serving_engine() -> GpuTrace:
    t = GpuTrace(memory_bytes=80 << 30, annotate_steps=False)
    t.memory(55 << 30)
    products(t)
    for number in range(8):
        with t.annotate(f"execute_new_{number % 2}_cached_{number}"):
            products(t)
        t.python(ms(14))
    t.sync()
    return t


def _on_a_cpu(
    body: Callable[[GpuTrace, int], object], steps: int = 8, *, annotate_steps: bool = True
) -> GpuTrace:
    """Steps of a training without a GPU: a body, 10 ms of operators, and the optimizer."""
    t = GpuTrace(device_name=None, annotate_steps=annotate_steps)
    for number in range(steps):
        with t.step():
            body(t, number)
            t.op("aten::linear").python(ms(5))
            t.op("autograd::engine::evaluate_function: AddmmBackward0").python(ms(4))
            with t.annotate("Optimizer.step#SGD.step"):
                t.op("aten::_foreach_add_").python(ms(1))
    return t


def _four_workers_in_bursts() -> GpuTrace:
    """The median step waits for nothing, and the loader takes most of the time."""
    return _on_a_cpu(
        lambda t, step: t.data_wait(us(50) if step % 4 else ms(80)), 16, annotate_steps=False
    )


def _whole_file_waits_for_input() -> GpuTrace:
    t = GpuTrace(device_name=None)
    t.data_wait(ms(40))
    t.op("aten::linear").python(ms(20))
    return t


def _compiled_with_stacks(compiling_step: int | None) -> GpuTrace:
    def body(t: GpuTrace, step: int) -> None:
        with t.frame("torch/_dynamo/eval_frame.py(1076): compile_wrapper"):
            if step == compiling_step:
                with t.frame("torch/_dynamo/convert_frame.py(1633): _compile"):
                    t.op("_compile.compile_inner (dynamo_timed)").python(ms(400))
            t.op("Torch-Compiled Region: 0/0").python(ms(10))

    return _on_a_cpu(body)


def _dropout_on_a_cpu() -> GpuTrace:
    """Drawing the mask takes 4 of 14 ms."""

    def body(t: GpuTrace, _step: int) -> None:
        with t.op("aten::dropout"):
            t.op("aten::bernoulli_").python(ms(4))

    return _on_a_cpu(body)


def _zeroed_gradients() -> GpuTrace:
    """Zeroing takes 1 ms, and adding to the zeros 2 ms."""

    def body(t: GpuTrace, _step: int) -> None:
        with t.annotate("Optimizer.zero_grad#SGD.zero_grad"):
            for _ in range(10):
                t.op("aten::zero_").python(us(100))
        for _ in range(10):
            with t.op("torch::autograd::AccumulateGrad"):
                t.op("aten::add_").python(us(200))

    return _on_a_cpu(body)


def _never_moved_to_the_gpu() -> GpuTrace:
    described = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 80 << 30}
    t = GpuTrace(device_name=None, header={"deviceProperties": [described]})
    for _ in range(4):
        with t.step():
            t.op("aten::addmm").python(ms(5))
            t.op("autograd::engine::evaluate_function: AddmmBackward0").python(us(50))
            with t.annotate("Optimizer.step#SGD.step"):
                t.op("aten::_foreach_add_").python(ms(1))
    return t


def _prefetching_thread() -> GpuTrace:
    """Another thread waits for the loader; the training never does."""

    def body(t: GpuTrace, _step: int) -> None:
        with t.beside(1_500, "prefetch"):
            t.data_wait(ms(9))

    return _on_a_cpu(body, annotate_steps=False)


def _small_model() -> GpuTrace:
    t = GpuTrace(device_name=None)
    for _ in range(8):
        with t.step():
            for _ in range(4):
                t.op("aten::linear").python(us(150))
                t.python(us(150))
    return t


def _loader_hidden_behind_the_gpu() -> GpuTrace:
    # The host waits 4 ms for the batch, but runs so far ahead that the GPU never notices.
    return job(lambda t, s: (t.data_wait(ms(4)), products(t)))


def _launch_bound() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(80):
            t.op("aten::mm", **MM, before=us(60), after=us(20)).launch(GEMM, us(40))

    return job(body, steps=8)


def _starved() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(80):
            t.op("aten::mm", **MM, before=us(90), after=us(20)).launch(GEMM, us(40))

    return job(body, steps=8)


def _cuda_graph() -> GpuTrace:
    return job(lambda t, s: t.graph_launch([(GEMM, us(40))] * 200, gap_ns=1000))


def _python_loop() -> GpuTrace:
    return job(lambda t, s: (t.python(ms(16)), products(t)))


def _python_beside_the_gpu() -> GpuTrace:
    return job(lambda t, s: (t.python(ms(3)), products(t)))


def _items() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(6):
            for _ in range(4):
                t.op("aten::mm", **MM, before=us(45), after=us(5)).launch(GEMM, us(150))
            t.item()

    return job(body)


def _one_item_in_a_long_step() -> GpuTrace:
    return job(lambda t, s: (products(t, 40), t.item()))


def _noise_on_the_cpu() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        with t.op("aten::randn"):
            t.op("aten::normal_").python(ms(12))
        t.op("aten::to").copy("HtoD", 1 << 20, us(20))
        products(t)

    return job(body)


def _pageable() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        t.op("aten::to").copy("HtoD", 64 << 20, ms(2), pinned=False)
        for _ in range(25):
            t.op("aten::view", before=us(40)).python(0)
        products(t)

    return job(body)


def _pageable_ahead() -> GpuTrace:
    """The host is held up, and is ahead of the GPU again at once: the copy itself is what costs."""

    def body(t: GpuTrace, _step: int) -> None:
        t.op("aten::to").copy("HtoD", 256 << 20, ms(5), pinned=False)
        products(t)

    return job(body)


def _distributed(overlapped: bool, length: int) -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        products(t, 6)
        moments = []
        for _ in range(3):
            moments.append(t.collective("all_reduce", 64 << 20, length))
            if not overlapped:
                t.wait_collective(moments[-1])
            products(t, 2)
        t.wait_collective(moments[-1])

    return job(body, world_size=8)


def _exposed_at_the_end() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        products(t)
        t.wait_collective(t.collective("all_reduce", 512 << 20, ms(4)))

    return job(body, world_size=8)


def _collectives(lengths: Callable[[int, int], int], memory: bool = False) -> GpuTrace:
    def body(t: GpuTrace, step: int) -> None:
        products(t, 6)
        if memory and step == 2:
            t.malloc(20 << 30, ms(1))
        for number in range(3):
            moment = t.collective("all_reduce", 64 << 20, lengths(step, number))
            products(t, 3 if number < 2 else 0)
        t.wait_collective(moment)

    return job(body, world_size=8)


def _churn() -> GpuTrace:
    return job(_with(lambda t, s: (t.free(1 << 30, us(200)), t.malloc(1 << 30, us(300)))))


def _churn_from_the_start() -> GpuTrace:
    return job(_with(lambda t, s: [t.malloc(1 << 30, ms(2)) for _ in range(5)]))


def _memory(size: int) -> GpuTrace:
    return job(healthy, memory=size)


def _half_without_tensor_cores() -> GpuTrace:
    return job(lambda t, s: products(t, name="void gemv_like_kernel<c10::BFloat16>_128x64_tn_gemm"))


def _float() -> GpuTrace:
    return job(lambda t, s: products(t, name=PLAIN, **MM_FLOAT))


def _tf32() -> GpuTrace:
    name = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"
    return job(lambda t, s: products(t, name=name, **MM_FLOAT))


def _on_amd(kernel: str, **operands) -> GpuTrace:
    options = {"vendor": "amd", "device_name": "AMD Instinct MI300X"}
    return job(lambda t, s: products(t, name=kernel, **operands), **options)


def _small_kernels() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        products(t, 2)
        for _ in range(300):
            t.op("aten::add", before=us(1), after=us(1)).launch(SMALL, us(6), call_ns=us(2))

    return job(body)


def _gradients_one_by_one() -> GpuTrace:
    """Reduces 80 gradients in a loop, each with a copy before it."""

    def body(t: GpuTrace, _step: int) -> None:
        products(t)
        for _ in range(80):
            t.op("aten::clone", before=us(300)).launch(SMALL, us(15), call_ns=us(3))
            t.collective("all_reduce", 4 << 10, us(12), waits_for_compute=False)

    return job(body)


def _unfused() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        products(t)
        with t.annotate("Optimizer.step#Adam.step"):
            adam(t, 12)

    return job(body)


def adam(t: GpuTrace, tensors: int, prefix: str = "aten::", kernel: str = SMALL, **operands):
    """What Adam calls for each tensor: 21 passes, where a fused one makes 7."""
    names = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")
    for _ in range(tensors):
        for name in names:
            t.op(prefix + name, before=us(2), **operands).launch(kernel, us(15), call_ns=us(3))


def _fusible() -> GpuTrace:
    """RMSNorm of a model whose products do not take all of the step."""

    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            rms_norm(t)

    return job(body)


def rms_norm(t: GpuTrace, rows: int = 8192, side: int = 4096):
    """RMSNorm as transformers has it, in BF16 with an upcast."""
    large, small = [rows, side], [rows, 1]
    half, single = "c10::BFloat16", "float"
    for name, shapes, types, length in (
        ("aten::copy_", [large, large, []], [single, half, "Scalar"], us(80)),
        ("aten::pow", [large, []], [single, "Scalar"], us(100)),
        ("aten::mean", [large, [], []], [single, "ScalarList", "Scalar"], us(50)),
        ("aten::add", [small, [], []], [single, "double", "Scalar"], us(2)),
        ("aten::rsqrt", [small], [single], us(2)),
        ("aten::mul", [large, small], [single, single], us(100)),
        ("aten::copy_", [large, large, []], [half, single, "Scalar"], us(80)),
        ("aten::mul", [[side], large], [half, half], us(60)),
    ):
        t.op(name, shapes=shapes, types=types).launch(MUL, length)


def _unfused_on_a_cpu(operators: int, name: str, optimizer: str = "Adam") -> GpuTrace:
    """15 ms of other work, and an optimizer that takes 10 ms."""

    def body(t: GpuTrace, _step: int) -> None:
        t.op("aten::linear").python(ms(5))
        with t.annotate(f"Optimizer.step#{optimizer}.step"):
            for _ in range(operators):
                t.op(name).python(ms(10) // operators)

    return _on_a_cpu(body)


def _optimizer_that_nests_on_a_cpu(outer: str, inner: str) -> GpuTrace:
    """An optimizer that takes 10 ms, in few operators that call others for each tensor."""

    def body(t: GpuTrace, _step: int) -> None:
        t.op("aten::linear").python(ms(5))
        with t.annotate("Optimizer.step#AdamW.step"):
            for _ in range(4):
                with t.op(outer):
                    for _ in range(50):
                        t.op(inner).python(us(50))

    return _on_a_cpu(body)


def _closure_on_a_cpu() -> GpuTrace:
    """An optimizer of few operators that runs forward and backward, as Lightning has it."""

    def body(t: GpuTrace, _step: int) -> None:
        with t.annotate("Optimizer.step#AdamW.step"):
            for name in ("aten::linear", "autograd::engine::evaluate_function: AddmmBackward0"):
                for _ in range(80):
                    with t.op(name):
                        t.op("aten::mm").python(us(100))
            for _ in range(20):
                t.op("aten::add_").python(us(50))

    return _on_a_cpu(body)


def _checkpointing(again: int) -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        products(t, 6)
        with (
            t.thread(),
            t.op("autograd::engine::evaluate_function: CheckpointFunctionBackward"),
            t.op("CheckpointFunctionBackward"),
        ):
            products(t, again)
        with t.thread(), t.op("autograd::engine::evaluate_function: MmBackward0"):
            products(t, 12)

    return job(body)


def _compiling() -> GpuTrace:
    def body(t: GpuTrace, step: int) -> None:
        if step == 0:
            with t.annotate("_compile.compile_inner (dynamo_timed)"):
                t.python(ms(30))
        healthy(t, step)

    return job(body)


def _recompiling(steps: Callable[[int], bool], length: int = ms(12)) -> GpuTrace:
    def body(t: GpuTrace, step: int) -> None:
        if steps(step):
            with t.annotate("_compile.compile_inner (dynamo_timed)"):
                t.python(length)
        healthy(t, step)

    return job(body, steps=6)


def _garbage() -> GpuTrace:
    return job(lambda t, s: (t.gc_pause(ms(14)), products(t)))


def _overhead() -> GpuTrace:
    return job(lambda t, s: (t.overhead("Activity Buffer Request", ms(5)), products(t)))


def _unlinked() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for number in range(10):
            t.op("aten::mm", **MM).launch(GEMM, us(900), linked=number % 3 != 0)

    return job(body)


def _launched_before_the_window() -> GpuTrace:
    t = GpuTrace(memory_bytes=80 << 30)
    t.memory(55 << 30)
    for _ in range(10):
        t.op("aten::mm", **MM).launch(GEMM, us(900), linked=False)
    for number in range(STEPS):
        with t.step():
            healthy(t, number)
            optimizer(t)
    t.sync()
    return t


def _launched_before_the_recording() -> GpuTrace:
    t = GpuTrace(memory_bytes=80 << 30, annotate_steps=False)
    t.memory(55 << 30)
    for _ in range(20):
        t.op("aten::mm", **MM).launch(GEMM, us(900), linked=False)
    # Nothing is repeated that could be taken for a step.
    for _ in range(STEPS):
        products(t)
    t.sync()
    return t


def _slow_start() -> GpuTrace:
    """The context is created and the first memory allocated: 30 s before steps of 10 ms."""

    def body(t: GpuTrace, step: int) -> None:
        if step == 0:
            t.malloc(1 << 30, ms(30_000))
        healthy(t, step)

    return job(body)


def _one_stall() -> GpuTrace:
    return job(lambda t, s: (t.python(ms(500) if s == 1 else 0), healthy(t, s)), steps=3)


def _stalls() -> GpuTrace:
    """No accident: every other step takes long."""
    return job(lambda t, s: (t.python(ms(60) if s % 2 else 0), healthy(t, s)), steps=8)


def _bursts_of_input() -> GpuTrace:
    """Four workers: one step waits for all of them, the next three find their batches ready."""
    return job(lambda t, s: (t.data_wait(ms(100) if s % 4 == 1 else us(30)), products(t)), steps=8)


def _backlog() -> GpuTrace:
    """The host runs three steps ahead of a GPU that waits for the network half of the time."""
    t = GpuTrace(memory_bytes=80 << 30, world_size=8)
    t.memory(55 << 30)
    for _ in range(30):
        t.op("aten::mm", **MM).launch(GEMM, us(900), linked=False)
    for _ in range(STEPS):
        with t.step():
            products(t, 5)
            t.wait_collective(t.collective("all_reduce", 512 << 20, ms(5)))
            optimizer(t)
    t.sync()
    return t


def _copies(direction: str, **options) -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        # On the stream that computes: nothing can run beside it.
        for _ in range(4):
            t.op("aten::copy_").copy(direction, 256 << 20, us(400), **options)
        products(t)

    return job(body)


def _copies_beside_the_products() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(4):
            t.op("aten::copy_").copy("HtoD", 16 << 20, us(400), pinned=True, stream=13)
        products(t)

    return job(body)


MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16>>"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()>"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>"
CUTLASS = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>"
SCORES = [8, 12, 3137, 3137]


def attention_by_hand(t: GpuTrace, wrapper: str | None = None):
    """Two batched products with the softmax of 3137 × 3137 scores between them."""
    heads, length, width = 96, 3137, 64
    queries = {"shapes": [[heads, length, width], [heads, width, length]], "types": HALF}
    values = {"shapes": [[heads, length, length], [heads, length, width]], "types": HALF}
    with t.op(wrapper or "aten::matmul"):
        t.op("aten::bmm", **queries).launch(CUTLASS, us(1900))
        t.op("aten::mul", shapes=[SCORES, []], types=HALF).launch(MUL, us(1300))
        with t.op("aten::softmax"):
            t.op("aten::_softmax", shapes=[SCORES, [], []], types=HALF).launch(SOFTMAX, us(5700))
        t.op("aten::bmm", **values).launch(CUTLASS, us(1700))


def fused_attention(t: GpuTrace):
    with t.op("aten::_flash_attention_forward"):
        t.launch(FLASH, us(900))


def _unfused_attention(wrapper: str | None = None) -> GpuTrace:
    return job(lambda t, s: (products(t), attention_by_hand(t, wrapper)))


def _router_softmax() -> GpuTrace:
    """A softmax over few experts between ordinary products is no attention."""

    def body(t: GpuTrace, _step: int) -> None:
        products(t)
        t.op("aten::_softmax", shapes=[[16384, 64], [], []], types=HALF).launch(SOFTMAX, us(400))
        products(t, 2)

    return job(body)


def _normalisation_by_hand() -> GpuTrace:
    """Chains of elementwise kernels over whole activations, as of RMSNorm and rotary embeddings."""

    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            with t.frame("nn.Module: RMSNorm_3"):
                for name in ("aten::to", "aten::pow", "aten::mul", "aten::mul"):
                    t.op(name).launch(MUL, us(120))

    return job(body)


def _compiled_normalisation() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            t.op("aten::mul").launch("triton_red_fused_mean_mul_pow_rsqrt_3", us(150))

    return job(body)


def _odd_vocabulary() -> GpuTrace:
    """The last product has a side of 50257, and takes five times as long as with 50304."""
    head = {"shapes": [[8192, 1600], [1600, 50257]], "types": HALF}
    return job(lambda t, s: (products(t, 6), products(t, 2, us(6500), **head)))


def _small_products() -> GpuTrace:
    """Products of few tiles cannot keep 132 multiprocessors busy."""
    small = {"shapes": [[256, 4096], [4096, 512]], "types": HALF}
    return job(lambda t, s: (products(t, 4), products(t, 30, us(60), **small)))


def _layout_copies() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            with t.op("aten::contiguous"), t.op("aten::clone"):
                t.op("aten::copy_").launch(COPY, us(150))

    return job(body)


def _transposing_convolutions() -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        products(t, 6)
        for _ in range(8):
            with t.op("aten::cudnn_convolution"):
                t.launch("void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16>", us(90))
                t.launch("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_nhwc", us(300))

    return job(body)


def _conversions() -> GpuTrace:
    """Copies that convert types are no layout copies."""

    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            with t.op("aten::to"), t.op("aten::_to_copy"), t.op("aten::clone"):
                t.op("aten::copy_").launch(COPY, us(150))

    return job(body)


def _no_gpu_work() -> GpuTrace:
    t = job(lambda t, s: products(t))
    t.events = [event for event in t.events if event["cat"] not in ("kernel", "gpu_memcpy")]
    return t


def _modules_loaded_once() -> GpuTrace:
    """One launch of a single step loads its module, and the device runs dry meanwhile."""

    def body(t: GpuTrace, _step: int) -> None:
        for number in range(60):
            call_ns = ms(1300) if number == 9 else None
            t.op("aten::mm", **MM).launch(GEMM, us(900), call_ns=call_ns)

    return job(body, steps=1)


SCENARIOS: tuple[Scenario, ...] = tuple(
    Scenario(name, build, frozenset(expected))
    for name, build, expected in (
        ("healthy", lambda: job(healthy), ()),
        ("healthy on AMD", lambda: job(healthy, vendor="amd", device_name="AMD MI300X"), ()),
        ("slow loader", _slow_loader, ("input-bound",)),
        ("modules loaded once", _modules_loaded_once, ("one-off-costs",)),
        ("loader hidden behind the GPU", _loader_hidden_behind_the_gpu, ()),
        ("no annotations", lambda: job(healthy, annotate_steps=False), ()),
        (
            "slow loader, no annotations, busy autograd thread",
            _slow_loader_without_annotations,
            ("input-bound",),
        ),
        (
            "slow loader, accumulation, no annotations",
            _accumulation_without_annotations,
            ("input-bound",),
        ),
        ("serving engine's ranges", _ranges_of_a_serving_engine, ("cpu-bound-python",)),
        ("healthy on a CPU", lambda: _on_a_cpu(lambda t, s: t.data_wait(us(50))), ()),
        ("four workers in bursts", _four_workers_in_bursts, ("input-bound",)),
        ("whole file without steps", _whole_file_waits_for_input, ("input-bound",)),
        ("calls of compiled code", lambda: _compiled_with_stacks(None), ()),
        (
            "compiling in one step on a CPU",
            lambda: _compiled_with_stacks(2),
            ("compilation-in-window",),
        ),
        ("a thread that fetches ahead", _prefetching_thread, ()),
        ("a model too small for its machine", _small_model, ("cpu-bound-python",)),
        ("launch-bound", _launch_bound, ("launch-bound",)),
        ("starved GPU", _starved, ("launch-bound",)),
        ("one CUDA graph", _cuda_graph, ()),
        ("Python loop", _python_loop, ("cpu-bound-python",)),
        ("Python beside the GPU", _python_beside_the_gpu, ()),
        ("items between products", _items, ("synchronisation",)),
        ("one item in a long step", _one_item_in_a_long_step, ()),
        ("dropout on a CPU", _dropout_on_a_cpu, ("slow-random-numbers",)),
        ("gradients filled with zeros on a CPU", _zeroed_gradients, ("zeroed-gradients",)),
        ("a model that was never moved to the GPU", _never_moved_to_the_gpu, ("gpu-unused",)),
        ("noise drawn on the CPU", _noise_on_the_cpu, ("cpu-operators",)),
        ("pageable input", _pageable, ("pageable-copies", "exposed-copies")),
        ("pageable input, host ahead", _pageable_ahead, ("exposed-copies",)),
        ("allocator churn in like steps", _churn_from_the_start, ("allocator-churn",)),
        ("communication hidden", lambda: _distributed(True, us(800)), ()),
        (
            "communication waited for",
            lambda: _distributed(False, ms(2)),
            ("exposed-communication", "poor-overlap"),
        ),
        ("one all-reduce at the end", _exposed_at_the_end, ("exposed-communication",)),
        (
            "one abnormal collective",
            lambda: _collectives(lambda s, n: ms(40) if (s, n) == (2, 2) else us(500)),
            # Its step is a stall, and the others have next to nothing exposed: "even collectives".
            ("abnormal-collective", "stalled-step"),
        ),
        ("even collectives", lambda: _collectives(lambda s, n: us(500)), ()),
        (
            "uneven collectives",
            lambda: _collectives(lambda s, n: us(800) + ms(2) * (s % 2)),
            ("exposed-communication", "rank-waiting"),
        ),
        ("allocator churn", _churn, ("allocator-churn",)),
        ("memory nearly full", lambda: _memory(76 << 30), ("memory-near-limit",)),
        ("memory nearly empty", lambda: _memory(10 << 30), ("memory-far-below-limit",)),
        ("half precision, plain cores", _half_without_tensor_cores, ("tensor-cores-unused",)),
        ("full FP32", _float, ("full-precision-matmuls",)),
        ("TF32", _tf32, ()),
        (
            "full FP32 on an unknown device",
            lambda: job(lambda t, s: products(t, name=PLAIN, **MM_FLOAT), device_name=None),
            (),
        ),
        (
            "half precision on AMD, plain cores",
            lambda: _on_amd("naive_conv_nonpacked_wrw_nchw_half_double_half"),
            ("tensor-cores-unused",),
        ),
        (
            "half precision on AMD",
            lambda: _on_amd("Cijk_Ailk_Bljk_HHS_BH_MT128x128x64_MI32x32x8x1_SN_1LDSB0"),
            (),
        ),
        (
            "full FP32 on AMD",
            lambda: _on_amd("Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x2x1_SN", **MM_FLOAT),
            ("full-precision-matmuls",),
        ),
        (
            "FP32 without tensor cores, of a family that has them",
            lambda: job(
                lambda t, s: products(
                    t, name="sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8", **MM_FLOAT
                )
            ),
            ("full-precision-matmuls",),
        ),
        ("small kernels", _small_kernels, ("many-small-kernels",)),
        (
            "gradients one by one",
            _gradients_one_by_one,
            ("launch-bound", "many-small-collectives"),
        ),
        ("unfused optimizer", _unfused, ("unfused-optimizer",)),
        (
            "unfused optimizer on a CPU",
            lambda: _unfused_on_a_cpu(200, "aten::addcdiv_"),
            ("unfused-optimizer",),
        ),
        ("LBFGS on a CPU", lambda: _unfused_on_a_cpu(200, "aten::add_", "LBFGS"), ()),
        ("fused optimizer on a CPU", lambda: _unfused_on_a_cpu(200, "aten::_fused_adam_"), ()),
        (
            "fused optimizer that counts steps by tensor on a CPU",
            lambda: _optimizer_that_nests_on_a_cpu("aten::_fused_adamw_", "aten::item"),
            (),
        ),
        (
            "foreach optimizer on a CPU",
            lambda: _optimizer_that_nests_on_a_cpu("aten::_foreach_addcdiv_", "aten::addcdiv_"),
            ("unfused-optimizer",),
        ),
        ("optimizer with a closure on a CPU", _closure_on_a_cpu, ()),
        ("optimizer of few tensors on a CPU", lambda: _unfused_on_a_cpu(20, "aten::add_"), ()),
        ("checkpointing", lambda: _checkpointing(6), ("heavy-recomputation",)),
        ("a little checkpointing", lambda: _checkpointing(1), ()),
        ("compiling", _compiling, ("compilation-in-window",)),
        ("recompiling in every step", lambda: _recompiling(lambda s: True), ("recompilation",)),
        (
            "recompiling now and then",
            lambda: _recompiling(lambda s: s % 2 == 1, ms(25)),
            ("recompilation",),
        ),
        (
            "compiling in the first steps",
            lambda: _recompiling(lambda s: s < 3),
            ("compilation-in-window",),
        ),
        ("a slow start of 30 s", _slow_start, ("slow-first-steps",)),
        ("one stall in three steps", _one_stall, ("stalled-step",)),
        ("a stall in every other step", _stalls, ("cpu-bound-python",)),
        ("input in bursts", _bursts_of_input, ("input-bound",)),
        ("a backlog before the window", _backlog, ("exposed-communication",)),
        ("garbage collector", _garbage, ("garbage-collector",)),
        ("profiler overhead", _overhead, ("profiler-overhead",)),
        ("copies within the GPU", lambda: _copies("DtoD"), ("exposed-copies",)),
        (
            "pinned copies that nothing runs beside",
            lambda: _copies("HtoD", pinned=True),
            ("exposed-copies",),
        ),
        ("copies beside the products", _copies_beside_the_products, ()),
        (
            "launched before the window",
            _launched_before_the_window,
            (),
        ),
        (
            "launched before the recording, without steps",
            _launched_before_the_recording,
            ("trace-incomplete",),
        ),
        ("launches missing", _unlinked, ("trace-incomplete",)),
        ("GPU side missing", _no_gpu_work, ("trace-incomplete",)),
        ("attention by hand", _unfused_attention, ("unfused-attention",)),
        (
            "attention that fell back",
            lambda: _unfused_attention("aten::_scaled_dot_product_attention_math"),
            ("unfused-attention",),
        ),
        ("fused attention", lambda: job(lambda t, s: (products(t), fused_attention(t))), ()),
        ("a router's softmax", _router_softmax, ()),
        ("normalisation by hand", _normalisation_by_hand, ("unfused-elementwise",)),
        ("RMSNorm operator by operator", _fusible, ("fusible-pattern",)),
        ("compiled normalisation", _compiled_normalisation, ()),
        ("an odd vocabulary", _odd_vocabulary, ("slow-matmuls",)),
        ("small products", _small_products, ("slow-matmuls",)),
        ("layout copies", _layout_copies, ("layout-copies",)),
        ("convolutions that transpose", _transposing_convolutions, ("layout-copies",)),
        ("copies that convert", _conversions, ()),
    )
)


def dump(t: GpuTrace) -> bytes:
    """The trace's file."""
    return json.dumps(t.document()).encode()
