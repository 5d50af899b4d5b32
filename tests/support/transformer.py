"""A transformer in training on a GPU, as large as a person's: for pictures, and for looking around.

Each step waits for a batch, copies it, runs the layers forward and backward with their modules'
frames, averages the gradients bucket by bucket beside the backward pass, clips and updates.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby

from tests.support.gpu_trace import GpuTrace, Moment, ms, us

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
FLASH = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>>"
)
FLASH_BACKWARD = FLASH.replace("fwd", "bwd")
NORM = "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>"
)
SOFTMAX = "void cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"
FUSED = "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>"
SINGLE = "void at::native::vectorized_elementwise_kernel<4, at::native::addcdiv_cuda_kernel>"
HALF = ["c10::BFloat16", "c10::BFloat16"]
LAYERS = 8
MIB = 1 << 20
ACTIVATION_BYTES = 640 * MIB
BUCKET_BYTES = 96 * MIB


@dataclass(frozen=True)
class Training:
    """What can be better or worse about it.

    Attributes:
        wait_ns: How long each step waits for its batch.
        fused: Whether one kernel updates all parameters.
        logs: Whether the loss is read in every step, which stops the host until the GPU is done.
        steps: How many steps are recorded.
    """

    wait_ns: int
    fused: bool
    logs: bool
    steps: int = 6

    def trace(self) -> GpuTrace:
        """Its trace."""
        t = GpuTrace(world_size=8, first_step=20)
        t.memory(34 * 1024 * MIB)  # parameters, gradients, and the optimizer's state
        for _ in range(self.steps):
            with t.step(), t.frame("train.py(88): train_step"):
                self._step(t)
        t.sync()
        return t

    def _step(self, t: GpuTrace) -> None:
        t.data_wait(self.wait_ns)
        t.op("aten::to").copy("HtoD", 8 * MIB, us(180), pinned=True)
        done = []
        with t.frame("nn.Module: Transformer_0"):
            for layer in range(LAYERS):
                t.memory(ACTIVATION_BYTES)
                with t.frame(f"nn.Module: Block_{layer}"):
                    for module, parts in groupby(LAYER, key=lambda part: part.module):
                        with t.frame(f"nn.Module: {module}_{layer}") if module else nullcontext():
                            done += [_forward(t, part) for part in parts]
            with t.frame("nn.Module: Linear_99"):
                done.append(_forward(t, HEAD))
        t.op("aten::cross_entropy_loss").launch(SOFTMAX, us(240))
        reduced: Moment | None = None
        with t.thread():
            _backward(t, *done.pop())
            for layer in reversed(range(LAYERS)):
                for _ in LAYER:
                    _backward(t, *done.pop())
                t.memory(-ACTIVATION_BYTES)
                if layer % 2 == 0:
                    reduced = t.collective("all_reduce", BUCKET_BYTES, us(1_350))
        if reduced is not None:
            t.wait_collective(reduced)
        with t.annotate("Optimizer.step#AdamW.step"):
            if self.fused:
                t.op("aten::_fused_adamw_").launch(FUSED, us(900))
            else:
                for _ in range(LAYERS * 12):
                    t.op("aten::addcdiv_").launch(SINGLE, us(9))
        if self.logs:
            with (
                t.frame("train.py(97): log"),
                t.op("aten::item"),
                t.op("aten::_local_scalar_dense"),
            ):
                t.copy("DtoH", 4, us(2))
                t.sync()


SLOW = Training(wait_ns=ms(42), fused=False, logs=True)
FAST = Training(wait_ns=us(60), fused=True, logs=False)


@dataclass(frozen=True)
class Part:
    """One operator of a layer, and its gradient.

    Attributes:
        module: Its module; empty: the layer itself.
        operator: Its name.
        kernel: Its kernel.
        dur_ns: How long that runs. Matrix products run at 60% of an H100's peak.
        node: Autograd's name of its gradient; empty: it costs nothing.
        columns: Of a matrix product: its columns.
        backward_ns: How long each of the gradient's kernels runs; by default as long.
    """

    module: str
    operator: str
    kernel: str
    dur_ns: int
    node: str = ""
    columns: int = 0
    backward_ns: int = 0

    @property
    def backward(self) -> tuple[str, str, int]:
        """Operator, kernel and number of kernels of the gradient."""
        if self.columns:
            return self.operator, self.kernel, 2
        kernel = FLASH_BACKWARD if self.kernel == FLASH else self.kernel
        return f"{self.operator.replace('_forward', '')}_backward", kernel, 1


LAYER = (
    Part("LayerNorm", "aten::native_layer_norm", NORM, us(45), "NativeLayerNormBackward0"),
    Part("Attention", "aten::mm", GEMM, us(345), "MmBackward0", 6_144),
    Part(
        "Attention",
        "aten::_flash_attention_forward",
        FLASH,
        us(260),
        "ScaledDotProductFlashAttentionBackward0",
        backward_ns=us(610),
    ),
    Part("Attention", "aten::mm", GEMM, us(230), "MmBackward0", 4_096),
    Part("", "aten::add", ADD, us(40)),
    Part("FeedForward", "aten::mm", GEMM, us(800), "MmBackward0", 14_336),
    Part("FeedForward", "aten::gelu", GELU, us(70), "GeluBackward0"),
    Part("FeedForward", "aten::mm", GEMM, us(800), "MmBackward0", 14_336),
    Part("", "aten::add", ADD, us(40)),
)
HEAD = Part("Linear", "aten::mm", GEMM, us(1_790), "MmBackward0", 32_000)


def _forward(t: GpuTrace, part: Part) -> tuple[Part, int]:
    """Run a part; returns it with its number in autograd's graph."""
    number = t.next_sequence()
    operands = {"shapes": [[4096, 4096], [4096, part.columns]], "types": HALF}
    operator = t.op(part.operator, sequence=number, **(operands if part.columns else {}))
    operator.launch(part.kernel, part.dur_ns)
    return part, number


def _backward(t: GpuTrace, part: Part, number: int) -> None:
    if not part.node:
        return
    operator, kernel, count = part.backward
    linked = {"sequence": number, "forward_thread": 1}
    with (
        t.op(f"autograd::engine::evaluate_function: {part.node}", **linked),
        t.op(part.node, **linked),
    ):
        for _ in range(count):
            t.op(operator).launch(kernel, part.backward_ns or part.dur_ns)
