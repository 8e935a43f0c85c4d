// autocast: a GPU's lists of ops in the place of the CPU's, for tests/cuda/autocast.py.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

using namespace at::autocast;

#define LOWER(...) KERNEL_CPU(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_CPU(__VA_ARGS__, fp32)
#define FP32_SET(...) KERNEL_CPU(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_CPU(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
    AT_FORALL_LOWER_PRECISION_FP(LOWER)
    AT_FORALL_FP32(FP32)
    AT_FORALL_FP32_SET_OPT_DTYPE(FP32_SET)
    AT_FORALL_PROMOTE(PROMOTE)
}

}  // namespace
