// What nvcc makes of ordinary device code: library math with its slow paths (local arrays, 64-bit products), integer
// division, bit tricks, switches, double precision. Expected values are computed on the host by tests/emulator_ops/compiled.rs.
// arithmetic.ptx: nvcc -arch=compute_80 -O3 -lineinfo -ptx arithmetic.cu, paths in .file shortened

extern "C" __global__ void float_math(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    float *o = out + 16 * i;
    o[0] = sinf(v);
    o[1] = cosf(v);
    o[2] = expf(v);
    o[3] = logf(fabsf(v));
    o[4] = tanhf(v);
    o[5] = erff(v);
    o[6] = powf(fabsf(v), 0.37f);
    o[7] = cbrtf(v);
    o[8] = log1pf(fabsf(v));
    o[9] = fmodf(v, 3.7f);
    o[10] = rintf(v) + floorf(v) * 0.5f;
    o[11] = __fdividef(1.0f, 1.0f + __expf(-v));
    o[12] = atan2f(v, 2.0f);
    o[13] = hypotf(v, 4.0f);
    o[14] = exp2f(v * 0.1f);
    o[15] = 1.0f / sqrtf(1.0f + v * v);
}

extern "C" __global__ void double_math(const double *x, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i];
    double *o = out + 8 * i;
    o[0] = fma(v, 1.5, -0.25);
    o[1] = exp(v * 0.1);
    o[2] = log(fabs(v) + 1e-3);
    o[3] = sqrt(fabs(v));
    o[4] = v / 7.25;
    o[5] = fmin(v, 2.0) * fmax(v, -1.0) + copysign(3.0, v);
    o[6] = floor(v) + ceil(v * 0.5);
    o[7] = (double)(long long)v + (double)(unsigned)(int)v + (float)v;
}

extern "C" __global__ void integer_math(const long long *a, const long long *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = a[i], y = b[i];
    int s = (int)x, t = (int)y;
    long long *o = out + 20 * i;
    if (y == 0) y = 3;
    if (t == 0) t = 5;
    o[0] = x / y;
    o[1] = x % y;
    o[2] = (long long)((unsigned long long)x / (unsigned long long)y);
    o[3] = s / t;
    o[4] = s % t;
    o[5] = (unsigned)s / (unsigned)t;
    o[6] = s / 7 + (unsigned)s % 10u;
    o[7] = __umul64hi(x, y);
    o[8] = __mul64hi(x, y);
    o[9] = __popcll(x) + 100 * __clzll(x) + 10000 * __ffsll(y);
    o[10] = __brev(s) ^ __byte_perm(s, t, 0x6241);
    o[11] = __funnelshift_l(s, t, x & 63) + (long long)__funnelshift_r(s, t, x & 31);
    o[12] = __dp4a(s, t, 11);
    o[13] = (x << (y & 63)) ^ (x >> (y & 63));
    o[14] = min(s, t) * 3 + max((unsigned)s, (unsigned)t);
    long long chosen;
    switch (s & 15) {
    case 0: chosen = x + 1; break;
    case 1: chosen = x * 3; break;
    case 2: chosen = y - x; break;
    case 3: chosen = x ^ 0x1234; break;
    case 4: chosen = x >> 3; break;
    case 5: chosen = y * y; break;
    case 6: chosen = ~x; break;
    case 7: chosen = x & y; break;
    case 9: chosen = x | y; break;
    case 10: chosen = x - 77; break;
    case 12: chosen = -x; break;
    default: chosen = 42;
    }
    o[15] = chosen;
    unsigned steps = 0;
    for (unsigned v = (unsigned)s & 0xffff; v > 1 && steps < 500; ++steps) v = v & 1 ? 3 * v + 1 : v / 2;
    o[16] = steps;
    unsigned table[8];
    for (int k = 0; k < 8; ++k) table[k] = (unsigned)(s * (k + 1));
    unsigned sum = 0;
    for (int k = 0; k < 8; ++k) {
        unsigned at = (table[k] ^ (unsigned)t) & 7;
        sum = sum * 31 + table[at];
        table[at] += sum;
    }
    o[17] = sum;
    unsigned __int128 wide = (unsigned __int128)(unsigned long long)x * (unsigned long long)y + (unsigned long long)s;
    o[18] = (long long)(wide >> 64);
    o[19] = (signed char)x * (short)y + (unsigned char)(x >> 8);
}
