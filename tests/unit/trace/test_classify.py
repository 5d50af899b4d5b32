# ruff: noqa: E501 - a name is not broken over lines
"""The classifier against names as the libraries write them."""

import polars as pl
import pytest

from stepscope.trace.classify import (
    COLLECTIVE_GROUPS,
    classify_by_metadata,
    classify_names,
    collective_group,
    group_of_fused,
)
from stepscope.trace.schema import CATEGORY, KIND

KERNELS = {
    # communication
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": ("communication", "all_reduce"),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("communication", "all_gather"),
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)": ("communication", "reduce_scatter"),
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)": ("communication", "send_recv"),
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)": ("communication", "broadcast"),
    "ncclKernel_Reduce_RING_LL_Sum_float(ncclDevComm*)": ("communication", "reduce"),
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": ("communication", "all_reduce"),
    "ncclSymkDevKernel_AllReduce_AGxLL_R_f32_sum(ncclSymkDevWorkArgs4K)": ("communication", "all_reduce"),
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": ("communication", "collective"),
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)": ("communication", "collective"),
    "hcclAllReduceKernel": ("communication", "all_reduce"),
    "oneapi::ccl::v1::allreduce_entry": ("communication", "all_reduce"),
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": ("communication", "expert_dispatch"),
    "void deep_ep::internode_ll::combine<true, 7168, 9>(void*)": ("communication", "expert_combine"),
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": ("communication", "expert_dispatch"),
    "void deep_ep::internode::cached_notify_combine<8>(int*)": ("communication", "expert_combine"),
    "_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4PfPi": ("communication", "expert_dispatch"),
    "_ZN7deep_ep9internode7combineILi8E13__nv_bfloat16EEvPT0_": ("communication", "expert_combine"),
    "void deep_ep::internode::cached_notify<false>(int, int)": ("communication", "barrier"),
    "void deep_ep::internode_ll::clean_low_latency_buffer<1024>(int*)": ("communication", "barrier"),
    "void cached_notify_combine<8>(void**, int*)": ("communication", "expert_combine"),
    "cached_notify_dispatch": ("communication", "expert_dispatch"),
    "cached_notify": ("communication", "barrier"),
    "notify_dispatch": ("communication", "expert_dispatch"),
    "_ZN9internode15notify_dispatchILb0ELi8EEEvPKiPii": ("communication", "expert_dispatch"),
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)": ("communication", "expert_dispatch"),
    "EpCombineInterNodeV1Kernel_bf16": ("communication", "expert_combine"),
    "void hybrid_ep::dispatch_kernel<uint16_t, 4, 8>(int)": ("communication", "expert_dispatch"),
    "void hybrid_ep::device_sync_kernel<1>(int)": ("communication", "collective"),
    "void hybrid_ep::scan<256, 16, 8>(int)": ("compute", "other"),
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<4>(int)": ("communication", "expert_dispatch"),
    "moe_dispatch_permute": ("compute", "elementwise"),
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)": ("compute", "sort_scan_index"),
    "nvshmemi_transfer_rma_kernel": ("communication", "collective"),
    "void barrier_on_stream_kernel_threadgroup<2>(int)": ("communication", "barrier"),
    "void alltoall_on_stream_kernel<float>(int, float*)": ("communication", "all_to_all"),
    "void executionKernel<mscclpp::LL16Packet>(int, __half*)": ("communication", "collective"),
    "void mscclpp::allreduce7<float>(float*, float*)": ("communication", "all_reduce"),
    "ucc_tl_cuda_allgather_kernel": ("communication", "all_gather"),
    "barrier_all_intra_node_atomic_cas_block": ("communication", "barrier"),
    "kernel_dispatch_token": ("communication", "expert_dispatch"),
    "kernel_combine_token": ("communication", "expert_combine"),
    "void c10d::symmetric_memory::put_signal_kernel(unsigned int**)": ("communication", "barrier"),
    "kernel_success_rate": ("compute", "other"),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": ("communication", "all_reduce"),
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": ("communication", "all_reduce"),
    "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>()": ("communication", "all_reduce"),
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()": ("communication", "all_reduce"),
    # copies and fills that are kernels
    "__amd_rocclr_copyBuffer": ("memcpy", "copy"),
    "__amd_rocclr_copyBufferAligned": ("memcpy", "copy"),
    "CopyHostToDevice": ("memcpy", "host_to_device"),
    "CopyDeviceToHost": ("memcpy", "device_to_host"),
    "MEMORY_COPY_DEVICE_TO_DEVICE": ("memcpy", "device_to_device"),
    "__amd_rocclr_fillBufferAligned": ("memset", "fill"),
    # compute
    "volta_sgemm_128x64_nn": ("compute", "gemm"),
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN": ("compute", "gemm"),
    "Cijk_Ailk_Bjlk_HHS_BH_MT64x64x32_MI16x16x16x1": ("compute", "gemm"),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3__5x_cublas": ("compute", "gemm"),
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>": ("compute", "gemm"),
    "void splitKreduce_kernel<float, float>(cublasSplitKParams<float>)": ("compute", "gemm"),
    "implicit_convolve_sgemm": ("compute", "convolution"),
    "void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)": ("compute", "convolution"),
    "volta_scudnn_128x64_relu_interior_nn_v1": ("compute", "convolution"),
    "igemm_fwd_gtcx35_nhwc_bf16_bx0_ex0": ("compute", "convolution"),
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>()": ("compute", "attention"),
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)": ("compute", "attention"),
    "attn_fwd.kd": ("compute", "attention"),
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512>()": ("compute", "normalisation"),
    "MIOpenBatchNormFwdTrainSpatial": ("compute", "normalisation"),
    "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)": ("compute", "normalisation"),
    "void (anonymous namespace)::softmax_warp_forward<float>()": ("compute", "softmax"),
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>": ("compute", "elementwise"),
    "void convert_fp32_to_bf16_kernel(float*)": ("compute", "elementwise"),
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": ("compute", "reduction"),
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>": ("compute", "optimizer"),
    "void split_embedding_codegen_forward_unweighted_kernel<float>()": ("compute", "embedding"),
    "void at::native::max_pool_forward_nchw<float>()": ("compute", "pooling"),
    "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>()": ("compute", "loss"),
    "void at::native::distribution_elementwise_grid_stride_kernel<float, 4>()": ("compute", "random"),
    "void cub::DeviceRadixSortOnesweepKernel<long>()": ("compute", "sort_scan_index"),
    "void at::native::index_elementwise_kernel<128, 4>()": ("compute", "sort_scan_index"),
    "triton_poi_fused__to_copy_all_gather_into_tensor_add_0": ("compute", "triton"),
    "triton_red_fused_native_layer_norm_3": ("compute", "triton"),
    "triton_tem_fused_addmm_relu_5": ("compute", "gemm"),
    "triton__0d1d2d3de4": ("compute", "triton"),
    "triton_fused_add_mul_0": ("compute", "triton"),
    "triton_flash_attention_kernel": ("compute", "attention"),
    "void quantize_attn_scores_fp8<c10::BFloat16>(c10::BFloat16*)": ("compute", "elementwise"),
    "quantize_mha_kv_cache": ("compute", "elementwise"),
    "void vllm::dequantize_block<float>": ("compute", "elementwise"),
    "marlin_dequantize_gemm": ("compute", "gemm"),
    "dma_request": ("memcpy", "copy"),
    "DMA_REQUEST_LLS_to_DRAM": ("memcpy", "copy"),
    "fc": ("compute", "gemm"),
    "batch_fc_bf16": ("compute", "gemm"),
    "fc_relu_0": ("compute", "gemm"),
    "tbe_forward": ("compute", "embedding"),
    "fc-dtype_Float": ("compute", "gemm"),
    "fc.1": ("compute", "gemm"),
    "batch_fc-fp16": ("compute", "gemm"),
    "tbe-forward": ("compute", "embedding"),
    "fully_connected-dtype_Float": ("compute", "gemm"),
    "FullyConnected_fp8": ("compute", "gemm"),
    "fcos_head": ("compute", "other"),
    "tbench": ("compute", "other"),
    "my_own_thing": ("compute", "other"),
}  # fmt: skip

HOST = {
    ("runtime", "cudaLaunchKernel"): "launch",
    ("runtime", "cudaLaunchKernelExC"): "launch",
    ("driver", "cuLaunchKernelEx"): "launch",
    ("runtime", "hipExtModuleLaunchKernel"): "launch",
    ("runtime", "cudaGraphLaunch"): "launch",
    ("runtime", "urEnqueueKernelLaunch"): "launch",
    ("runtime", "cudaLaunchHostFunc"): "host_function",
    ("runtime", "cudaStreamSynchronize"): "sync",
    ("runtime", "hipDeviceSynchronize"): "sync",
    ("runtime", "cudaEventSynchronize"): "sync",
    ("runtime", "cudaMalloc"): "allocation",
    ("runtime", "hipFree"): "allocation",
    ("runtime", "cudaHostAlloc"): "allocation",
    ("driver", "cuMemCreate"): "allocation",
    ("driver", "cuMemAddressFree"): "allocation",
    ("runtime", "cudaMemcpyAsync"): "copy_call",
    ("runtime", "hipMemcpyWithStream"): "copy_call",
    ("runtime", "cudaMemsetAsync"): "fill_call",
    ("runtime", "cudaStreamWaitEvent"): "stream_wait",
    ("runtime", "cudaEventRecord"): "event",
    ("runtime", "cudaGetDevice"): None,
    ("runtime", "cudaLibraryLoadData"): "module_load",
    ("runtime", "urProgramBuild"): "module_load",
    ("driver", "zeModuleCreate"): "module_load",
    ("user_annotation", "ProfilerStep#12"): "profiler_step",
    ("cpu_op", "ProfilerStep#12"): "profiler_step",
    ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"): "dataloader",
    ("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"): "dataloader",
    ("user_annotation", "enumerate(DataPipe)#ShufflerIterDataPipe"): "dataloader",
    ("user_annotation", "stepscope.data_wait"): "dataloader",
    ("user_annotation", "ncclAllReduce"): "all_reduce",
    ("user_annotation", "nccl notes"): None,
    ("python_function", "torch/utils/data/dataloader.py(735): __next__"): "dataloader",
    ("python_function", "train.py(10): forward"): None,
    ("user_annotation", "Optimizer.step#AdamW.step"): "optimizer_step",
    ("cpu_op", "Optimizer.zero_grad#SGD.zero_grad"): "optimizer_step",
    ("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0"): "backward",
    ("user_annotation", "DistributedDataParallel.forward"): "forward",
    ("cpu_op", "c10d::allreduce_"): "all_reduce",
    ("cpu_op", "c10d::_allgather_base_"): "all_gather",
    ("cpu_op", "c10d::_reduce_scatter_base_"): "reduce_scatter",
    ("cpu_op", "c10d::alltoall_base_"): "all_to_all",
    ("cpu_op", "_c10d_functional::all_gather_into_tensor"): "all_gather",
    ("user_annotation", "gloo:all_reduce"): "all_reduce",
    ("user_annotation", "nccl:recv"): "send_recv",
    ("cpu_op", "record_param_comms"): "collective",
    ("cpu_op", "aten::addmm"): "gemm",
    ("cpu_op", "aten::convolution_backward"): "convolution",
    ("cpu_op", "aten::add"): "elementwise",
    ("cpu_op", "aten::add_"): "elementwise",
    ("cpu_op", "aten::copy_"): "elementwise",
    ("cpu_op", "aten::sum"): "reduction",
    ("cpu_op", "aten::max_pool2d"): "pooling",
    ("cpu_op", "aten::cumsum"): "sort_scan_index",
    ("cpu_op", "aten::_index_put_impl_"): "sort_scan_index",
    ("cpu_op", "npu::npu_linear"): "gemm",
    ("cpu_op", "hpu::linear"): "gemm",
    ("cpu_op", "te_fully_connected"): "gemm",
    ("cpu_op", "mine::batch_matmul_v2"): "gemm",
    ("cpu_op", "aten::linear_backward"): "gemm",
    ("cpu_op", "mine::conv2d"): "convolution",
    ("cpu_op", "npu::npu_rms_norm"): "normalisation",
    ("cpu_op", "mine::log_softmax"): "softmax",
    ("cpu_op", "mine::bilinear"): None,
    ("cpu_op", "mine::linear_index"): None,
    ("cpu_op", "mine::atomm"): None,
    ("user_annotation", "linear"): None,
    ("cpu_op", "aten::view"): None,
    ("user_annotation", "my loop"): None,
}  # fmt: skip


def names(rows):
    return pl.DataFrame(
        {"name": [r[1] for r in rows], "category": [r[0] for r in rows]},
        schema={"name": pl.String, "category": CATEGORY},
    )


def test_kernels():
    found = classify_names(names([("kernel", name) for name in KERNELS]))
    got = {row["name"]: (row["kind"], row["group"]) for row in found.iter_rows(named=True)}
    assert got == KERNELS


def test_host_names():
    found = classify_names(names(list(HOST)))
    got = {(r["category"], r["name"]): r["group"] for r in found.iter_rows(named=True)}
    assert got == HOST
    assert found["kind"].unique().to_list() == ["none"]


@pytest.mark.parametrize(
    ("name", "kind", "group"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "memcpy", "host_to_device"),
        ("Memcpy DtoH (Device -> Pinned)", "memcpy", "device_to_host"),
        ("Memcpy DtoD (Device -> Device)", "memcpy", "device_to_device"),
        ("Memcpy PtoP (Device -> Device)", "memcpy", "peer"),
        ("Memcpy", "memcpy", "copy"),
    ],
)
def test_copies(name, kind, group):
    row = classify_names(names([("gpu_memcpy", name)])).row(0, named=True)
    assert (row["kind"], row["group"]) == (kind, group)


def test_order_types_and_other_columns_are_kept():
    table = names([("kernel", "a"), ("cpu_op", "b"), ("gpu_memset", "Memset"), ("kernel", "nccl")])
    found = classify_names(
        table.with_columns(pl.lit("x").alias("kind"), name_id=pl.Series([3, 1, 2, 0]))
    )
    assert found["name"].to_list() == table["name"].to_list()
    assert found["name_id"].to_list() == [3, 1, 2, 0]
    assert found["kind"].to_list() == ["compute", "none", "memset", "communication"]
    assert found.schema["kind"] == KIND
    nothing = classify_names(table.clear())
    assert nothing.is_empty()
    assert nothing.schema["group"] == pl.String
    without_name = classify_names(names([("kernel", None)]))
    assert without_name["group"].to_list() == ["other"]


def test_metadata_names_the_collective():
    table = pl.DataFrame(
        {
            "event": [4, 5, 6, 7],
            "args": [
                '{"Collective name": "allreduce", "stream": 7}',
                '{"stream": 7}',
                None,
                '{"grid":[1],"Collective name":"_allgather_base"}',
            ],
        }
    )
    found = classify_by_metadata(table)
    assert found["event"].to_list() == [4, 7]
    assert found["group"].to_list() == ["all_reduce", "all_gather"]
    assert found["kind"].unique().to_list() == ["communication"]


def test_every_word_for_a_collective_has_its_group():
    words = {
        "allreduce_coalesced": "all_reduce",
        "_reduce_scatter_base": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
        "all_to_allv": "all_to_all",
        "send": "send_recv",
        "barrier": "barrier",
        "gather": "gather",
        "scatter": "scatter",
        "reduce": "reduce",
        "wait": "collective",
    }
    table = pl.DataFrame({"word": list(words)})
    got = table.select(collective_group(pl.col("word")).alias("group"))["group"].to_list()
    assert got == list(words.values())
    assert set(got) <= set(COLLECTIVE_GROUPS)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("triton_per_fused_native_layer_norm_3", "normalisation"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_12", "normalisation"),
        ("triton_per_fused__softmax_mul_tril_5", "softmax"),
        ("triton_red_fused_nll_loss_forward_7", "loss"),
        ("triton_poi_fused_add_mul_silu_0", "elementwise"),
        ("triton_red_fused_abs_9", "reduction"),
        ("triton_poi_fused_embedding_1", "embedding"),
        ("triton__0d1d2d", None),
        ("my_fused_add_3", None),
    ],
)
def test_a_compiled_kernel_is_told_by_what_it_fuses(name, group):
    found = pl.DataFrame({"name": [name]}).select(group_of_fused(pl.col("name"))).item()
    assert found == group
