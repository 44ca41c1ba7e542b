// Runs the source of a CUDA kernel on the CPU: one fiber per thread of a block, blocks one after another.
// Shuffles, warp and block barriers are rendezvous of exactly the threads in the mask; a rendezvous that cannot
// complete (a lane of the mask returned, or waits elsewhere) ends the launch with an error instead of hanging.
#pragma once
#undef _FORTIFY_SOURCE  // fibers switch by longjmp, which its checks take for an error
#include <setjmp.h>
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>
#define EMULATED 1
#define DEV inline
#define SHARED static
#define DYNAMIC_SHARED(T, name) T* name = (T*)emulated::dynamic_shared.data()
#define __restrict__
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y, z; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;
using std::max;
using std::min;

namespace emulated {
struct Rendezvous { uint32_t arrived = 0; unsigned generation = 0; };
struct Lane { uint32_t a[4], b[2]; uint64_t value; };
struct Fiber { ucontext_t context; jmp_buf at; std::unique_ptr<char[]> stack; bool started = false, done = true; };
static const size_t STACK = 64 * 1024;
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::vector<Rendezvous> warps, block_barrier(1);
static std::vector<Lane> lanes;
static std::vector<double> dynamic_shared;
static ucontext_t caller;
static jmp_buf scheduler;
static unsigned current, alive;
static bool progress;
static std::function<void()> body;

inline void pause() { if (!_setjmp(fibers[current]->at)) _longjmp(scheduler, 1); }
inline void meet(Rendezvous& r, uint32_t bit, uint32_t mask) {
  r.arrived |= bit;
  if ((r.arrived & mask) == mask) { r.arrived &= ~mask; ++r.generation; progress = true; return; }
  for (const unsigned g = r.generation; r.generation == g;) pause();
}
inline void meet_warp(uint32_t mask) {
  const unsigned lane = current & 31, first = (unsigned)__builtin_ctz(mask);
  if (!(mask >> lane & 1)) { std::fprintf(stderr, "lane %u is not in its own mask %08x\n", lane, mask); std::abort(); }
  meet(warps[current / 32 * 32 + first], 1u << lane, mask);
}
inline void meet_block() {
  Rendezvous& r = block_barrier[0];
  if (++r.arrived == blockDim.x) { r.arrived = 0; ++r.generation; progress = true; return; }
  for (const unsigned g = r.generation; r.generation == g;) pause();
}
inline void enter() {  // a fiber lives on: each turn is a thread of some block
  for (;;) {
    body();
    fibers[current]->done = true; --alive; progress = true;
    pause();
  }
}
inline void resume(unsigned t) {
  Fiber& f = *fibers[t];
  current = t; threadIdx = {t, 0, 0};
  if (_setjmp(scheduler)) return;
  if (f.started) _longjmp(f.at, 1);
  f.started = true; f.stack.reset(new char[STACK]); getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get(); f.context.uc_stack.ss_size = STACK; f.context.uc_link = &caller;
  makecontext(&f.context, (void (*)())enter, 0);
  swapcontext(&caller, &f.context);
}
// 0, or 1 where threads of a block wait for one another for ever
inline int launch(const std::function<void()>& kernel, unsigned grid, unsigned block, size_t shared_bytes) {
  body = kernel; gridDim = {grid, 1, 1}; blockDim = {block, 1, 1};
  dynamic_shared.assign(shared_bytes / 8 + 1, NAN); lanes.assign((block + 31) / 32 * 32, Lane());
  while (fibers.size() < block) { fibers.emplace_back(new Fiber); }
  for (unsigned b = 0; b < grid; ++b) {
    blockIdx = {b, 0, 0}; alive = block;
    warps.assign((block + 31) / 32 * 32, Rendezvous()); block_barrier.assign(1, Rendezvous());
    for (unsigned t = 0; t < block; ++t) fibers[t]->done = false;
    while (alive) {
      progress = false;
      for (unsigned t = 0; t < block; ++t) {
        if (!fibers[t]->done) resume(t);
      }
      if (!progress) { fibers.clear(); return 1; }
    }
  }
  return 0;
}
template<class T> T exchange(uint32_t mask, T mine, unsigned source) {
  static_assert(sizeof(T) <= 8, "shuffles carry at most eight bytes");
  Lane* warp = &lanes[current / 32 * 32];
  std::memcpy(&warp[current & 31].value, &mine, sizeof(T));
  meet_warp(mask);
  T result; std::memcpy(&result, &warp[source].value, sizeof(T));
  meet_warp(mask);
  return result;
}
// m16n8k(8 * halves): c += a * b by the fragment layouts of mma.sync; value(x) is the lower (or only) number of a register
template<class F> void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int halves, F value) {
  Lane* warp = &lanes[current / 32 * 32]; const unsigned lane = current & 31, q = lane / 4, t = lane & 3;
  std::memcpy(warp[lane].a, a, sizeof a); std::memcpy(warp[lane].b, b, sizeof b);
  meet_warp(0xffffffffu);
  for (int i = 0; i < 4; ++i) {
    const unsigned row = q + 8 * (unsigned)(i / 2), n = 2 * t + (unsigned)(i & 1);
    double s = c[i];
    for (unsigned half = 0; half < 2; ++half) for (unsigned r = 0; r < 4; ++r) for (int h = 0; h < halves; ++h) {
      const uint32_t x = warp[(row % 8) * 4 + r].a[row / 8 + 2 * half], y = warp[n * 4 + r].b[half];
      s += (double)value(x >> 16 * h) * (double)value(y >> 16 * h);
    }
    c[i] = (float)s;
  }
  meet_warp(0xffffffffu);
}
inline float bits_to_float(uint32_t x) { float f; std::memcpy(&f, &x, 4); return f; }
inline uint32_t float_to_bits(float f) { uint32_t x; std::memcpy(&x, &f, 4); return x; }
inline float half_to_float(uint16_t h) { _Float16 x; std::memcpy(&x, &h, 2); return (float)x; }
inline uint16_t float_to_half(float f) { const _Float16 x = (_Float16)f; uint16_t h; std::memcpy(&h, &x, 2); return h; }
inline uint16_t float_to_bfloat(float f) {
  const uint32_t x = float_to_bits(f);
  return f != f ? 0x7fff : (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}
inline uint32_t float_to_tf32(float f) { return f != f ? 0x7fffffff : (float_to_bits(f) + 0x1000) & ~0x1fffu; }
}  // namespace emulated

inline void __syncthreads() { emulated::meet_block(); }
inline void __syncwarp(uint32_t mask) { emulated::meet_warp(mask); }
template<class T> T __shfl_sync(uint32_t mask, T x, int from, int width) {
  const int lane = (int)threadIdx.x & 31;
  return emulated::exchange(mask, x, (unsigned)((lane & ~(width - 1)) | (from & (width - 1))));
}
template<class T> T __shfl_xor_sync(uint32_t mask, T x, int d, int) { return emulated::exchange(mask, x, (threadIdx.x & 31) ^ (unsigned)d); }
template<class T> T __shfl_up_sync(uint32_t mask, T x, int d, int width) {
  const int lane = (int)threadIdx.x & 31;
  return emulated::exchange(mask, x, (unsigned)((lane & (width - 1)) < d ? lane : lane - d));
}
template<class T> T __shfl_down_sync(uint32_t mask, T x, int d, int width) {
  const int lane = (int)threadIdx.x & 31;
  return emulated::exchange(mask, x, (unsigned)((lane & (width - 1)) + d >= width ? lane : lane + d));
}
template<class T> T __ldg(const T* p) {
  if ((uintptr_t)p % sizeof(T)) { std::fprintf(stderr, "misaligned load of %zu bytes\n", sizeof(T)); std::abort(); }
  return *p;
}
template<class T> T atomicAdd(T* p, T x) { const T old = *p; *p += x; return old; }
inline int atomicMax(int* p, int x) { const int old = *p; *p = std::max(old, x); return old; }
inline float __int_as_float(int x) { return emulated::bits_to_float((uint32_t)x); }
inline int __float_as_int(float x) { return (int)emulated::float_to_bits(x); }
