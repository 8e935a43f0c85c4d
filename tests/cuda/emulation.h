/* emulation: lets a C++ compiler make a CUDA program for the CPU, so that the very text that NVRTC compiles is run by tests:
 *
 *     g++ -x c++ -std=c++17 -O1 -shared -fPIC -include emulation.h program.cu -o program.so
 *     kernel = dlsym(so, "name_0"), launch = dlsym(so, "cc_emulation_launch")
 *     launch(kernel, grid, threads, shared, argument, bytes, order) -> 0, or a CUDA error's number
 *
 * Blocks run one after the other; the threads of a block are fibers of one system thread, so barriers and shuffles wait for
 * one another as on a GPU: a lane that is missing at a shuffle, or a thread at __syncthreads(), is an error and no luck.
 * `order` 1 runs blocks, warps and lanes backwards: results that differ tell of a race. Between barriers threads run to
 * their next barrier, in turn. A kernel has one parameter, a struct of more than 16 bytes: by the x86-64 ABI such a
 * one lies on the stack whatever its size, which is how kernels of all types are called here. x86-64 Linux only. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __global__ __attribute__((visibility("default"), noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local

struct cc_dim3 {
    unsigned x, y, z;
};
static thread_local cc_dim3 threadIdx, blockIdx, blockDim, gridDim;
enum { warpSize = 32 };

/* ------------------------------------------------------------------ fibers */

namespace cc_emulation {

enum { STACK = 128 * 1024, MAX_THREADS = 1024, MAX_ARGUMENT = 4096 };
enum { OK = 0, ERROR_INVALID = 1, ERROR_ASSERT = 710, ERROR_LAUNCH = 719 };
enum State { READY, AT_WARP, AT_BLOCK, DONE };

struct Argument {
    char bytes[MAX_ARGUMENT];
};

struct Fiber {
    void *stack;
    State state;
};

struct Warp {
    int here; /* lanes at the barrier */
    unsigned parity[32];
    uint64_t value[2][32];
};

struct Block {
    Fiber fiber[MAX_THREADS];
    Warp warp[MAX_THREADS / 32];
    char *stacks;
    void *scheduler; /* stack pointer of what runs the fibers */
    int threads, current, at_block, error;
    const char *message;
    void (*kernel)(Argument);
    const Argument *argument;
    alignas(16) char shared[64 * 1024]; /* dynamic shared memory */
};
static thread_local Block *block;

/* Saves what the ABI says that a function keeps, and goes on where `to` left off. */
__attribute__((naked, noinline, used)) static void change(void **from, void *to) {
    asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15;"
        "mov %rsp, (%rdi); mov %rsi, %rsp;"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}

__attribute__((noipa)) static void leave(State state) {
    Block *b = block;
    Fiber *f = &b->fiber[b->current];
    f->state = state;
    change(&f->stack, b->scheduler);
}

static void body() {
    block->kernel(*block->argument);
    leave(DONE);
    abort();
}

static void fail(int error, const char *message) {
    if (!block->error) block->error = error, block->message = message;
}

/* A lane's word goes to its slot; when all lanes have come they read. Slots alternate: the next word may be there before
 * the last lane has read this one. */
__attribute__((noipa)) static uint64_t exchange(unsigned mask, uint64_t value, int from) {
    Block *b = block;
    const int lane = b->current % 32;
    Warp *w = &b->warp[b->current / 32];
    if (mask != 0xffffffffu) fail(ERROR_LAUNCH, "a warp's mask is not full");
    const unsigned slot = w->parity[lane]++ & 1;
    w->value[slot][lane] = value;
    w->here++;
    leave(AT_WARP);
    return block->warp[block->current / 32].value[slot][from & 31];
}

static void start(Block *b, int i) {
    void **top = (void **)(b->stacks + (size_t)(i + 1) * STACK - 64);
    *--top = nullptr; /* where body would return to; keeps the stack aligned as after a call */
    *--top = (void *)body;
    for (int k = 0; k < 6; k++) *--top = nullptr;
    b->fiber[i] = {top, READY};
}

static void resume(Block *b, int i) {
    b->current = i;
    threadIdx.x = (unsigned)i;
    change(&b->scheduler, b->fiber[i].stack);
}

/* Runs a warp until all of its lanes are done or wait for the block. */
static void run_warp(Block *b, int first, bool backwards) {
    for (;;) {
        for (int k = 0; k < 32; k++) {
            const int i = first + (backwards ? 31 - k : k);
            if (b->fiber[i].state == READY) resume(b, i);
            if (b->error) return;
        }
        Warp *w = &b->warp[first / 32];
        if (w->here == 0) return;
        if (w->here < 32) {
            fail(ERROR_LAUNCH, "lanes are missing at a shuffle");
            return;
        }
        w->here = 0;
        for (int i = first; i < first + 32; i++) b->fiber[i].state = READY;
    }
}

static void run_block(Block *b, bool backwards) {
    memset(b->warp, 0, sizeof b->warp[0] * (size_t)(b->threads / 32));
    memset(b->shared, 0xff, sizeof b->shared); /* nothing is left there from the last block */
    for (int i = 0; i < b->threads; i++) start(b, i);
    b->at_block = 0;
    for (;;) {
        for (int w = 0; w < b->threads && !b->error; w += 32) run_warp(b, backwards ? b->threads - 32 - w : w, backwards);
        if (b->error || b->at_block == 0) return;
        if (b->at_block < b->threads) {
            fail(ERROR_LAUNCH, "threads are missing at __syncthreads()");
            return;
        }
        b->at_block = 0;
        for (int i = 0; i < b->threads; i++) b->fiber[i].state = READY;
    }
}

} // namespace cc_emulation

extern "C" __attribute__((visibility("default"))) int cc_emulation_launch(void *kernel, long long grid, int threads, int shared,
                                                                          const void *argument, int bytes, int order) {
    using namespace cc_emulation;
    if (grid < 1 || grid > 0x7fffffff || threads < 32 || threads > MAX_THREADS || threads % 32 || bytes <= 16 ||
        bytes > MAX_ARGUMENT || shared > (int)sizeof block->shared)
        return ERROR_INVALID;
    static thread_local char *stacks;
    if (!stacks) {
        void *got = mmap(nullptr, (size_t)STACK * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) return 2; /* cudaErrorMemoryAllocation */
        stacks = (char *)got;
    }
    static thread_local Block b;
    Argument copy;
    memset(copy.bytes + bytes, 0xcc, sizeof copy.bytes - (size_t)bytes);
    memcpy(copy.bytes, argument, (size_t)bytes);
    b.stacks = stacks;
    b.threads = threads;
    b.error = OK;
    b.kernel = (void (*)(Argument))kernel;
    b.argument = &copy;
    block = &b;
    gridDim = {(unsigned)grid, 1, 1};
    blockDim = {(unsigned)threads, 1, 1};
    threadIdx = blockIdx = {0, 0, 0};
    for (long long i = 0; i < grid && !b.error; i++) {
        blockIdx.x = (unsigned)(order ? grid - 1 - i : i);
        run_block(&b, order != 0);
    }
    if (b.error) fprintf(stderr, "emulation: %s (block %u, thread %u)\n", b.message, blockIdx.x, threadIdx.x);
    return b.error;
}

/* ------------------------------------------------------------------ what kernels call */

static inline void __syncthreads() {
    cc_emulation::block->at_block++;
    cc_emulation::leave(cc_emulation::AT_BLOCK);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) { cc_emulation::exchange(mask, 0, 0); }

template <class T>
static inline T cc_emulation_shuffle(unsigned mask, T x, int from) {
    uint64_t word = 0;
    memcpy(&word, &x, sizeof x);
    word = cc_emulation::exchange(mask, word, from);
    memcpy(&x, &word, sizeof x);
    return x;
}
static inline int cc_emulation_lane() { return (int)(threadIdx.x % 32); }
/* Only the types that CUDA has. */
#define CC_SHUFFLES(T) \
    static inline T __shfl_sync(unsigned mask, T x, int from) { return cc_emulation_shuffle(mask, x, from); } \
    static inline T __shfl_xor_sync(unsigned mask, T x, int bit) { return cc_emulation_shuffle(mask, x, cc_emulation_lane() ^ bit); } \
    static inline T __shfl_up_sync(unsigned mask, T x, unsigned by) { \
        const int from = cc_emulation_lane() - (int)by; \
        return cc_emulation_shuffle(mask, x, from >= 0 ? from : cc_emulation_lane()); \
    } \
    static inline T __shfl_down_sync(unsigned mask, T x, unsigned by) { \
        const int from = cc_emulation_lane() + (int)by; \
        return cc_emulation_shuffle(mask, x, from < 32 ? from : cc_emulation_lane()); \
    }
CC_SHUFFLES(int)
CC_SHUFFLES(unsigned)
CC_SHUFFLES(long long)
CC_SHUFFLES(unsigned long long)
CC_SHUFFLES(float)
CC_SHUFFLES(double)
#undef CC_SHUFFLES
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned all = 0;
    for (int bit = 0; bit < 32; bit++) all |= (unsigned)(cc_emulation_shuffle(mask, predicate != 0, bit) ? 1 : 0) << bit;
    return all;
}

/* Blocks and threads never run at the same time. */
template <class T>
static inline T atomicAdd(T *p, T x) {
    const T before = *p;
    *p = before + x;
    return before;
}
template <class T>
static inline T atomicCAS(T *p, T expected, T x) {
    const T before = *p;
    if (before == expected) *p = x;
    return before;
}
static inline void __threadfence() {}

template <class T>
static inline T __ldg(const T *p) { return *p; }
[[noreturn]] static inline void cc_emulation_stop(int error, const char *message) {
    cc_emulation::fail(error, message);
    cc_emulation::leave(cc_emulation::DONE);
    abort();
}
[[noreturn]] static inline void __assertfail(const char *message, const char *, unsigned, const char *, size_t) {
    cc_emulation_stop(cc_emulation::ERROR_ASSERT, message);
}
[[noreturn]] static inline void __trap() { cc_emulation_stop(cc_emulation::ERROR_LAUNCH, "trap"); }

static inline float cc_emulation_rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define rsqrtf cc_emulation_rsqrtf /* some math.h have one */
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, sizeof f); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, sizeof u); return u; }
static inline float __int_as_float(int u) { return __uint_as_float((unsigned)u); }
static inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
static inline double __longlong_as_double(long long u) { double f; memcpy(&f, &u, sizeof f); return f; }
static inline long long __double_as_longlong(double f) { long long u; memcpy(&u, &f, sizeof u); return u; }
