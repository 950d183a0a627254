// Calls of device functions: by name, with structures, recursive, through pointers, printf and assert.
// functions.ptx: nvcc -arch=compute_80 -O3 -std=c++17 -ptx functions.cu
#include <cassert>
#include <cstdio>

struct Pair {
    int sum;
    double product;
    short tag[3];
};

__device__ __noinline__ Pair combine(int a, double b, short c) {
    Pair pair;
    pair.sum = a + static_cast<int>(b);
    pair.product = a * b;
    for (int i = 0; i < 3; ++i) pair.tag[i] = static_cast<short>(c * (i + 1));
    return pair;
}

__device__ __noinline__ unsigned fibonacci(unsigned n) {
    if (n < 2) return n;
    return fibonacci(n - 1) + fibonacci(n - 2);
}

// Each level keeps an array on its stack and hands out a pointer to it.
__device__ __noinline__ int depth_first(const int* above, int level) {
    int here[4];
    for (int i = 0; i < 4; ++i) here[i] = above[i] * 3 + level + i;
    if (level == 0) return here[0] ^ here[1] ^ here[2] ^ here[3];
    int below = depth_first(here, level - 1);
    return below + here[level & 3];
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int plus(int a, int b) { return a + b; }
__device__ __noinline__ int minus(int a, int b) { return a - b; }
__device__ __noinline__ int times(int a, int b) { return a * b; }
__device__ Operation operations[3] = {plus, minus, times};

// Leaves early in some lanes, and ends the thread in others.
__device__ __noinline__ int early(int x) {
    if (x % 5 == 0) return -x;
    if (x % 7 == 0) asm volatile("exit;");
    int s = 0;
    for (int i = 0; i < x; ++i) {
        if (i == 11) return s + 1000;
        s += i * x;
    }
    return s;
}

extern "C" __global__ void functions(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair pair = combine(i, i * 0.5, static_cast<short>(i));
    out[8 * i] = pair.sum;
    out[8 * i + 1] = static_cast<int>(pair.product);
    out[8 * i + 2] = pair.tag[0] + pair.tag[1] + pair.tag[2];
    out[8 * i + 3] = fibonacci(i % 12);
    int top[4] = {i, i + 1, i + 2, i + 3};
    out[8 * i + 4] = depth_first(top, i % 6);
    out[8 * i + 5] = operations[i % 3](i, 7);
    out[8 * i + 6] = -7;
    out[8 * i + 6] = early(i);
    out[8 * i + 7] = 1;
}

extern "C" __global__ void prints(int x, double y, const char* unused) {
    if (threadIdx.x < 2)
        printf("lane %d: %5d|%-6x|%08.3f|%e|%g|%s|%c|%llu%%\n", threadIdx.x, x, x, y, y, y, "text", 'z', 1ull << 40);
    if (threadIdx.x == 3) printf("no arguments\n");
}

extern "C" __global__ void checks(int limit) { assert(static_cast<int>(threadIdx.x) < limit); }

extern "C" __global__ void endless(int* out) { out[threadIdx.x] = depth_first(out, 1 << 20); }
