// A call that is not inlined: refused when the module is loaded, with the line.
// refused.ptx: nvcc -arch=compute_80 -O3 -lineinfo -ptx refused.cu, paths in .file shortened
__device__ __noinline__ float twice(float x) { return x * 2.0f + 1.0f; }
extern "C" __global__ void calls(float *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
