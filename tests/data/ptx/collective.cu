// Blocks that work together: shared memory, shuffles, atomics, 16-bit arithmetic, constant tables, early exits.
// collective.ptx: nvcc -arch=compute_80 -O3 -lineinfo -ptx collective.cu, paths in .file shortened
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ int weights[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__device__ unsigned long long grand_total = 1000;

extern "C" __global__ void block_sums(const float *x, float *out, unsigned *histogram, int n) {
    __shared__ float partial[32];
    __shared__ unsigned bins[64];
    int tid = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    for (int b = tid; b < 64; b += threads) bins[b] = 0;
    __syncthreads();
    float sum = 0;
    for (int i = blockIdx.x * threads + tid; i < n; i += gridDim.x * threads) {
        float v = x[i] * weights[i & 15];
        sum += v;
        atomicAdd(&bins[(unsigned)i * 2654435761u >> 26], 1u);
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if ((tid & 31) == 0) partial[tid >> 5] = sum;
    __syncthreads();
    if (tid < 32) {
        sum = tid < (threads + 31) / 32 ? partial[tid] : 0.0f;
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (tid == 0) out[blockIdx.x] = sum;
    }
    for (int b = tid; b < 64; b += threads) atomicAdd(&histogram[b], bins[b]);
    unsigned many = __syncthreads_count(tid % 3 == 0);
    if (tid == 0) atomicAdd(&grand_total, (unsigned long long)many);
}

extern "C" __global__ void read_total(unsigned long long *out) { *out = grand_total; }

// Inclusive prefix sum of one block; threads beyond n leave early after the last barrier they are needed for.
extern "C" __global__ void scan(const int *x, int *out, int n) {
    extern __shared__ int buffer[];
    int tid = threadIdx.x;
    buffer[tid] = tid < n ? x[tid] : 0;
    __syncthreads();
    for (int step = 1; step < (int)blockDim.x; step <<= 1) {
        int add = tid >= step ? buffer[tid - step] : 0;
        __syncthreads();
        buffer[tid] += add;
        __syncthreads();
    }
    if (tid >= n) return;
    out[tid] = buffer[tid];
}

extern "C" __global__ void halves(const __half2 *a, const __half2 *b, __half2 *out_h, const __nv_bfloat162 *c, const __nv_bfloat162 *d, __nv_bfloat162 *out_b, float *out_f, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out_h[3 * i] = __hfma2(a[i], b[i], a[i]);
    out_h[3 * i + 1] = __hadd2(a[i], __hmul2(b[i], b[i]));
    out_h[3 * i + 2] = __hmax2(__hneg2(a[i]), b[i]);
    out_b[3 * i] = __hfma2(c[i], d[i], c[i]);
    out_b[3 * i + 1] = __hmul2(c[i], d[i]);
    out_b[3 * i + 2] = __floats2bfloat162_rn(__low2float(c[i]) * 1.01f, __high2float(d[i]) - 0.3f);
    out_f[2 * i] = __half2float(__low2half(a[i])) + __bfloat162float(__high2bfloat16(c[i]));
    out_f[2 * i + 1] = __half2float(hexp2(__low2half(b[i])));
}
