// SpMM, SDDMM and SpMV on a GPU, templates instantiated by name: CSR order, int32 indices, row-major
// dense operands. Stored as float, double, f16 or bf16; 16-bit types accumulate in float.
// The source needs no header: NVRTC, nvcc and a C++ compiler behind emulate.h take it as it is.
#ifndef EMULATED
#define DEV __device__ __forceinline__
#define SHARED __shared__
#define DYNAMIC_SHARED(T, name) extern __shared__ T name[]
#endif
typedef unsigned int u32;
typedef unsigned short u16;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifdef EMULATED
DEV float up(f16 x) { return emulated::half_to_float(x.bits); }
DEV void down(f16& r, float x) { r.bits = emulated::float_to_half(x); }
DEV void down(bf16& r, float x) { r.bits = emulated::float_to_bfloat(x); }
DEV u32 to_tf32(float x) { return emulated::float_to_tf32(x); }
DEV float tf32_value(u32 x) { return __int_as_float((int)x); }
DEV float low_bf16(u32 x) { return __int_as_float((int)(x << 16)); }
DEV float low_f16(u32 x) { return emulated::half_to_float((u16)x); }
DEV void mma_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { emulated::mma(c, a, b, 1, tf32_value); }
DEV void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { emulated::mma(c, a, b, 2, low_bf16); }
DEV void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { emulated::mma(c, a, b, 2, low_f16); }
#else
DEV float up(f16 x) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits)); return f; }
DEV void down(f16& r, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); }
DEV void down(bf16& r, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); }
DEV u32 to_tf32(float x) { u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
DEV void mma_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
DEV float up(float x) { return x; }
DEV double up(double x) { return x; }
DEV float up(bf16 x) { return __int_as_float((int)((u32)x.bits << 16)); }
DEV void down(float& r, float x) { r = x; }
DEV void down(double& r, double x) { r = x; }
template<class T> struct Sum { typedef float type; };
template<> struct Sum<double> { typedef double type; };

// V neighbouring values, read by one load of V * sizeof(T) bytes (two where that is 32).
template<int BYTES> struct Word;
template<> struct Word<2> { typedef u16 type; };
template<> struct Word<4> { typedef u32 type; };
template<> struct Word<8> { typedef uint2 type; };
template<> struct Word<16> { typedef uint4 type; };
template<class T, int V> struct Pack { T x[V]; };
template<class T, int V> union Bits {
  static const int BYTES = V * (int)sizeof(T), WORDS = BYTES > 16 ? 2 : 1;
  typedef typename Word<BYTES / WORDS>::type W;
  Pack<T, V> pack; W word[WORDS];
  DEV Bits() {}
};
template<class T, int V> DEV Pack<T, V> load(const T* p) {
  Bits<T, V> b;
#pragma unroll
  for (int i = 0; i < Bits<T, V>::WORDS; ++i) b.word[i] = __ldg((const typename Bits<T, V>::W*)p + i);
  return b.pack;
}
template<class T, int V, class S> DEV void store(T* p, const S* a) {
  Bits<T, V> b;
#pragma unroll
  for (int v = 0; v < V; ++v) down(b.pack.x[v], a[v]);
#pragma unroll
  for (int i = 0; i < Bits<T, V>::WORDS; ++i) ((typename Bits<T, V>::W*)p)[i] = b.word[i];
}

template<int LANES> DEV u32 group_mask() {
  if (LANES == 32) return 0xffffffffu;
  return ((1u << (LANES & 31)) - 1u) << ((threadIdx.x & 31) & ~(LANES - 1));
}

// Arguments of all kernels. Units of work: rows (ptr, perm), pieces (piece_row with the sign bit set where the
// result row is shared, piece_begin, piece_end), equal pieces of the entry list (rows: row of each entry).
// SELL slices: ptr slice offsets, perm rows. Windows: idx columns, val values in the order that the kernel reads,
// position of each value in CSR (SDDMM), perm the row of each slot (-1: none).
struct Args {
  const int* ptr; const int* idx; const void* val; const int* rows; const int* perm;
  const int* piece_row; const int* piece_begin; const int* piece_end; const int* position;
  const void* B; const void* X; void* out; const void* entry_val;
  int m, n, nnz, K, pieces, piece, row_blocks, col_blocks, columns_fast;
};

// acc[c][v] += a * B[j][column of lane, c, v]
template<class T, int LANES, int V, int C, class S>
DEV void axpy(S a, int j, const T* __restrict__ B, int K, int col0, S (&acc)[C][V]) {
#pragma unroll
  for (int c = 0; c < C; ++c) if (col0 + c * LANES * V < K) {
    Pack<T, V> b = load<T, V>(B + (size_t)j * K + col0 + c * LANES * V);
#pragma unroll
    for (int v = 0; v < V; ++v) acc[c][v] += a * up(b.x[v]);
  }
}

// acc[c][v] += sum over entries [begin, end) of val * B[col][column of lane, c, v]
template<class T, int LANES, int V, int C, int STAGE, int UNROLL, class S>
DEV void spmm_range(int begin, int end, const int* __restrict__ idx, const T* __restrict__ val, const T* __restrict__ B, int K, int col0, S (&acc)[C][V]) {
  const int lane = threadIdx.x & (LANES - 1);
  if (STAGE == 0) {
    int p = begin;
    for (; p + UNROLL <= end; p += UNROLL) {
      int j[UNROLL]; S a[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) { j[u] = __ldg(idx + p + u); a[u] = up(load<T, 1>(val + p + u).x[0]); }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) axpy<T, LANES, V, C>(a[u], j[u], B, K, col0, acc);
    }
    for (; p < end; ++p) axpy<T, LANES, V, C>((S)up(load<T, 1>(val + p).x[0]), __ldg(idx + p), B, K, col0, acc);
  } else {
    SHARED int staged_col[512];  // entries of all groups of a block, which has 512 threads at most
    SHARED S staged[512];
    const u32 mask = group_mask<LANES>();
    const int base = threadIdx.x & ~(LANES - 1);
    for (int q = begin; q < end; q += LANES) {
      const int mine = q + lane;
      const int jm = mine < end ? __ldg(idx + mine) : 0;
      const S am = mine < end ? (S)up(load<T, 1>(val + mine).x[0]) : (S)0;
      const int count = min(LANES, end - q);
      if (STAGE == 2) { __syncwarp(mask); staged_col[threadIdx.x] = jm; staged[threadIdx.x] = am; __syncwarp(mask); }
      int t = 0;
      for (; t + UNROLL <= count; t += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          int j; S a;
          if (STAGE == 1) { j = __shfl_sync(mask, jm, t + u, LANES); a = __shfl_sync(mask, am, t + u, LANES); }
          else { j = staged_col[base + t + u]; a = staged[base + t + u]; }
          axpy<T, LANES, V, C>(a, j, B, K, col0, acc);
        }
      }
      for (; t < count; ++t) {
        int j; S a;
        if (STAGE == 1) { j = __shfl_sync(mask, jm, t, LANES); a = __shfl_sync(mask, am, t, LANES); }
        else { j = staged_col[base + t]; a = staged[base + t]; }
        axpy<T, LANES, V, C>(a, j, B, K, col0, acc);
      }
    }
  }
}

template<class O, int LANES, int V, int C, class S>
DEV void flush(O* __restrict__ out, int row, int K, int col0, S (&acc)[C][V], bool atomic) {
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int col = col0 + c * LANES * V;
    if (col < K) {
      O* p = out + (size_t)row * K + col;
      if (atomic) {
#pragma unroll
        for (int v = 0; v < V; ++v) atomicAdd((S*)p + v, acc[c][v]);  // O is S wherever rows are shared
      } else store<O, V>(p, acc[c]);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) acc[c][v] = 0;
  }
}

// Group of this thread among all groups, and its first dense column, in a grid of row_blocks x col_blocks.
template<int LANES> DEV int group_of(const Args& a, int tile, int vec, int& col0) {
  const u32 fast = a.columns_fast ? a.col_blocks : a.row_blocks, slow_at = blockIdx.x / fast, fast_at = blockIdx.x - slow_at * fast;  // one division
  const int rb = a.columns_fast ? slow_at : fast_at, cb = a.columns_fast ? fast_at : slow_at;
  col0 = cb * tile + (threadIdx.x & (LANES - 1)) * vec;
  return rb * (blockDim.x / LANES) + threadIdx.x / LANES;
}

// WORK 0: rows, 1: pieces of rows, 2: equal pieces of the entry list. Stored as T; result as O (S where rows are shared).
template<class T, class O, int WORK, int LANES, int V, int C, int STAGE, int UNROLL>
DEV void spmm(const Args& a) {
  typedef typename Sum<T>::type S;
  const T *val = (const T*)a.val, *B = (const T*)a.B; O* out = (O*)a.out;
  int col0; const int g = group_of<LANES>(a, LANES * V * C, V, col0);
  S acc[C][V];
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int v = 0; v < V; ++v) acc[c][v] = 0;
  if (WORK == 0) {
    if (g >= a.m) return;
    const int row = a.perm ? __ldg(a.perm + g) : g;
    spmm_range<T, LANES, V, C, STAGE, UNROLL>(__ldg(a.ptr + row), __ldg(a.ptr + row + 1), a.idx, val, B, a.K, col0, acc);
    flush<O, LANES, V, C>(out, row, a.K, col0, acc, false);
  } else if (WORK == 1) {
    if (g >= a.pieces) return;
    const int tagged = __ldg(a.piece_row + g);
    spmm_range<T, LANES, V, C, STAGE, UNROLL>(__ldg(a.piece_begin + g), __ldg(a.piece_end + g), a.idx, val, B, a.K, col0, acc);
    flush<O, LANES, V, C>(out, tagged & 0x7fffffff, a.K, col0, acc, tagged < 0);
  } else {
    const long long first = (long long)g * a.piece;
    if (first >= a.nnz) return;
    const int begin = (int)first, end = (int)min((long long)a.nnz, first + a.piece);
    int p = begin, row = __ldg(a.rows + begin);
    while (p < end) {
      int row_end = __ldg(a.ptr + row + 1);
      while (row_end == p) row_end = __ldg(a.ptr + ++row + 1);
      const int stop = min(row_end, end);
      spmm_range<T, LANES, V, C, STAGE, UNROLL>(p, stop, a.idx, val, B, a.K, col0, acc);
      flush<O, LANES, V, C>(out, row, a.K, col0, acc, !(__ldg(a.ptr + row) >= begin && row_end <= end));
      p = stop; ++row;
    }
  }
}

// BATCH rows (WORK 0) or pieces (WORK 1) side by side in a group: one entry of each in flight at a time.
template<class T, class O, int WORK, int LANES, int V, int C, int BATCH>
DEV void spmm_batch(const Args& a) {
  typedef typename Sum<T>::type S;
  const T *val = (const T*)a.val, *B = (const T*)a.B; O* out = (O*)a.out;
  int col0; const int g = group_of<LANES>(a, LANES * V * C, V, col0);
  const int units = WORK == 1 ? a.pieces : a.m;
  if ((long long)g * BATCH >= units) return;
  S acc[BATCH][C][V]; int p[BATCH], end[BATCH], tagged[BATCH]; int longest = 0;
#pragma unroll
  for (int r = 0; r < BATCH; ++r) {
    const int u = min(g * BATCH + r, units - 1);
    tagged[r] = WORK == 1 ? __ldg(a.piece_row + u) : a.perm ? __ldg(a.perm + u) : u;
    const bool real = g * BATCH + r < units;
    p[r] = WORK == 1 ? __ldg(a.piece_begin + u) : __ldg(a.ptr + tagged[r]);
    end[r] = real ? (WORK == 1 ? __ldg(a.piece_end + u) : __ldg(a.ptr + tagged[r] + 1)) : p[r];
    longest = max(longest, end[r] - p[r]);
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int v = 0; v < V; ++v) acc[r][c][v] = 0;
  }
  for (int t = 0; t < longest; ++t) {
    int j[BATCH]; S x[BATCH];
#pragma unroll
    for (int r = 0; r < BATCH; ++r) if (p[r] + t < end[r]) { j[r] = __ldg(a.idx + p[r] + t); x[r] = up(load<T, 1>(val + p[r] + t).x[0]); }
#pragma unroll
    for (int r = 0; r < BATCH; ++r) if (p[r] + t < end[r]) axpy<T, LANES, V, C>(x[r], j[r], B, a.K, col0, acc[r]);
  }
#pragma unroll
  for (int r = 0; r < BATCH; ++r) if (g * BATCH + r < units) flush<O, LANES, V, C>(out, tagged[r] & 0x7fffffff, a.K, col0, acc[r], tagged[r] < 0);
}

// Windows of H rows: for each column that occurs in the window, H values (zeros where a row has none), float32 exact.
// A group takes the columns [piece_begin, piece_end) of window piece_row.
template<class T, class O, int LANES, int V, int C, int H, int UNROLL>
DEV void spmm_window(const Args& a) {
  typedef typename Sum<T>::type S;
  const T *val = (const T*)a.val, *B = (const T*)a.B; O* out = (O*)a.out;
  int col0; const int g = group_of<LANES>(a, LANES * V * C, V, col0);
  if (g >= a.pieces) return;
  const int tagged = __ldg(a.piece_row + g), end = __ldg(a.piece_end + g);
  S acc[H][C][V];
#pragma unroll
  for (int r = 0; r < H; ++r)
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int v = 0; v < V; ++v) acc[r][c][v] = 0;
#pragma unroll UNROLL
  for (int p = __ldg(a.piece_begin + g); p < end; ++p) {
    const int j = __ldg(a.idx + p);
    Pack<T, V> b[C];
#pragma unroll
    for (int c = 0; c < C; ++c) if (col0 + c * LANES * V < a.K) b[c] = load<T, V>(B + (size_t)j * a.K + col0 + c * LANES * V);
#pragma unroll
    for (int q = 0; q < H; q += 4) {
      Pack<T, 4> x = load<T, 4>(val + (size_t)p * H + q);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c)
#pragma unroll
          for (int v = 0; v < V; ++v) acc[q + r][c][v] += (S)up(x.x[r]) * (S)up(b[c].x[v]);
    }
  }
#pragma unroll
  for (int r = 0; r < H; ++r) {
    const int row = __ldg(a.perm + (tagged & 0x7fffffff) * H + r);
    if (row >= 0) flush<O, LANES, V, C>(out, row, a.K, col0, acc[r], tagged < 0);
  }
}

// ---- Tensor cores. MATH 0: tf32, 1: tf32 in three products (about float32), 2: bf16, 3: f16 (16-bit operands only).
// A window of H rows is cut into blocks of 8 (tf32) or 16 columns that need not be neighbours; a lane's values of a
// block lie together in fragment order, its columns are idx[block * KW + (lane % 4) * KW / 4 ...].
template<int MATH> struct Math { static const int KW = MATH <= 1 ? 8 : 16; };
template<int MATH, class T> DEV u32 pair(T x, T y);
template<> DEV u32 pair<2, float>(float x, float y) { bf16 p, q; down(p, x); down(q, y); return p.bits | (u32)q.bits << 16; }
template<> DEV u32 pair<2, bf16>(bf16 x, bf16 y) { return x.bits | (u32)y.bits << 16; }
template<> DEV u32 pair<3, f16>(f16 x, f16 y) { return x.bits | (u32)y.bits << 16; }
DEV float tail_of(float x, u32 head) { return x - __int_as_float((int)head); }

// V dense columns of row j from column col on (zeros beyond K). V is 4 where K is a multiple of 4, 1 else.
template<class T, int V> DEV Pack<T, 4> quad(const T* __restrict__ B, int j, int K, int col) {
  Pack<T, 4> r;
  const T* p = B + (size_t)j * K + col;
  if (V == 4) {
    if (col < K) return load<T, 4>(p);
#pragma unroll
    for (int v = 0; v < 4; ++v) down(r.x[v], 0.f);
  } else {
#pragma unroll
    for (int v = 0; v < 4; ++v) { if (col + v < K) r.x[v] = load<T, 1>(p + v).x[0]; else down(r.x[v], 0.f); }
  }
  return r;
}

template<class O, int V> DEV void flush_quad(O* __restrict__ out, int row, int K, int col, float x, float y, float z, float w, bool atomic) {
  const float s[4] = {x, y, z, w};
  if (row < 0 || col >= K) return;
  O* p = out + (size_t)row * K + col;
  if (!atomic && V == 4) { store<O, 4>(p, s); return; }
#pragma unroll
  for (int v = 0; v < 4; ++v) if (col + v < K) { if (atomic) atomicAdd((float*)p + v, s[v]); else store<O, 1>(p + v, s + v); }
}

// C tiles of 32 dense columns per warp. H 16: A is the first operand; H 8: A is the second, B transposed the first.
template<class T, class O, int MATH, int H, int C, int V>
DEV void spmm_mma(const Args& a) {
  const T* B = (const T*)a.B; O* out = (O*)a.out;
  int col0; const int g = group_of<32>(a, 32 * C, 0, col0);
  const int lane = threadIdx.x & 31, q = lane / 4, t = lane & 3;
  if (g >= a.pieces) return;
  const int tagged = __ldg(a.piece_row + g), end = __ldg(a.piece_end + g);
  const int TILES = H == 16 ? 4 : 2;
  float acc[C][TILES][4];
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) acc[c][i][v] = 0.f;
  for (int p = __ldg(a.piece_begin + g); p < end; ++p) {
    if constexpr (MATH <= 1) {
      const float* fragment = (const float*)a.val + (size_t)p * (H * 8) + lane * (H / 4);
      Pack<float, H / 4> w = load<float, H / 4>(fragment);
      Pack<int, 2> j = load<int, 2>(a.idx + (size_t)p * 8 + t * 2);
      u32 head[H / 4], tail[H / 4];
#pragma unroll
      for (int i = 0; i < H / 4; ++i) { head[i] = to_tf32(w.x[i]); tail[i] = to_tf32(tail_of(w.x[i], head[i])); }
#pragma unroll
      for (int c = 0; c < C; ++c) {
        Pack<T, 4> b0 = quad<T, V>(B, j.x[0], a.K, col0 + c * 32 + q * 4), b1 = quad<T, V>(B, j.x[1], a.K, col0 + c * 32 + q * 4);
        u32 h0[4], h1[4], l0[4], l1[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          h0[v] = to_tf32(up(b0.x[v])); h1[v] = to_tf32(up(b1.x[v]));
          l0[v] = to_tf32(tail_of(up(b0.x[v]), h0[v])); l1[v] = to_tf32(tail_of(up(b1.x[v]), h1[v]));
        }
        if (H == 16) {
          const u32 wh[4] = {head[0], head[1], head[2 % (H / 4)], head[3 % (H / 4)]}, wl[4] = {tail[0], tail[1], tail[2 % (H / 4)], tail[3 % (H / 4)]};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const u32 bh[2] = {h0[i], h1[i]}, bl[2] = {l0[i], l1[i]};
            if (MATH == 1) { mma_tf32(acc[c][i % TILES], wl, bh); mma_tf32(acc[c][i % TILES], wh, bl); }
            mma_tf32(acc[c][i % TILES], wh, bh);
          }
        } else {
          const u32 wh[2] = {head[0], head[1]}, wl[2] = {tail[0], tail[1]};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const u32 bh[4] = {h0[2 * i], h0[2 * i + 1], h1[2 * i], h1[2 * i + 1]}, bl[4] = {l0[2 * i], l0[2 * i + 1], l1[2 * i], l1[2 * i + 1]};
            if (MATH == 1) { mma_tf32(acc[c][i], bh, wl); mma_tf32(acc[c][i], bl, wh); }
            mma_tf32(acc[c][i], bh, wh);
          }
        }
      }
    } else {
      const u32* fragment = (const u32*)a.val + (size_t)p * (H * 8) + lane * (H / 4);
      Pack<u32, H / 4> w = load<u32, H / 4>(fragment);
      Pack<int, 4> j = load<int, 4>(a.idx + (size_t)p * 16 + t * 4);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        Pack<T, 4> b[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) b[r] = quad<T, V>(B, j.x[r], a.K, col0 + c * 32 + q * 4);
        u32 lo[4], hi[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) { lo[v] = pair<MATH, T>(b[0].x[v], b[1].x[v]); hi[v] = pair<MATH, T>(b[2].x[v], b[3].x[v]); }
        if (H == 16) {
          const u32 x[4] = {w.x[0], w.x[1], w.x[2 % (H / 4)], w.x[3 % (H / 4)]};
#pragma unroll
          for (int i = 0; i < 4; ++i) { const u32 y[2] = {lo[i], hi[i]}; if constexpr (MATH == 2) mma_bf16(acc[c][i % TILES], x, y); else mma_f16(acc[c][i % TILES], x, y); }
        } else {
          const u32 y[2] = {w.x[0], w.x[1]};
#pragma unroll
          for (int i = 0; i < 2; ++i) { const u32 x[4] = {lo[2 * i], lo[2 * i + 1], hi[2 * i], hi[2 * i + 1]}; if constexpr (MATH == 2) mma_bf16(acc[c][i], x, y); else mma_f16(acc[c][i], x, y); }
        }
      }
    }
  }
  const int* slot = a.perm + (tagged & 0x7fffffff) * H;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int col = col0 + c * 32;
    if (H == 16) {  // tile i has dense columns 4 * n + i, n its own column: a lane holds n = 2 t and 2 t + 1
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          flush_quad<O, V>(out, __ldg(slot + q + 8 * h), a.K, col + (2 * t + e) * 4, acc[c][0][2 * h + e], acc[c][1][2 * h + e], acc[c][2 % TILES][2 * h + e], acc[c][3 % TILES][2 * h + e], tagged < 0);
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        flush_quad<O, V>(out, __ldg(slot + 2 * t + e), a.K, col + q * 4, acc[c][0][e], acc[c][0][2 + e], acc[c][1][e], acc[c][1][2 + e], tagged < 0);
    }
  }
}

// out[p] = val[p] * dot(X[row], B[col]); C vectors of V columns per lane hold the row of X.
template<class T, int LANES, int V, int C> DEV void row_of(const T* __restrict__ X, int row, int K, Pack<T, V> (&x)[C]) {
  const int lane = threadIdx.x & (LANES - 1);
#pragma unroll
  for (int c = 0; c < C; ++c) { const int col = (c * LANES + lane) * V; if (col < K) x[c] = load<T, V>(X + (size_t)row * K + col); else {
#pragma unroll
    for (int v = 0; v < V; ++v) down(x[c].x[v], 0.f); } }
}
// AHEAD: all loads before the first product, so that they are in flight together.
template<class T, int LANES, int V, int C, bool AHEAD, class S> DEV void dot_part(S& s, const Pack<T, V> (&x)[C], const T* __restrict__ B, int j, int K) {
  const int lane = threadIdx.x & (LANES - 1);
  Pack<T, V> y[C];
  if (AHEAD) {
#pragma unroll
    for (int c = 0; c < C; ++c) { const int col = (c * LANES + lane) * V; if (col < K) y[c] = load<T, V>(B + (size_t)j * K + col); }
  }
  s = 0;
#pragma unroll
  for (int c = 0; c < C; ++c) { const int col = (c * LANES + lane) * V; if (col < K) {
    if (!AHEAD) y[c] = load<T, V>(B + (size_t)j * K + col);
#pragma unroll
    for (int v = 0; v < V; ++v) s += (S)up(x[c].x[v]) * (S)up(y[c].x[v]); } }
}
template<class T, int LANES, int UNROLL, class S> DEV void flush_dots(S (&s)[UNROLL], int p, int end, const Args& a) {
  const u32 mask = group_mask<LANES>();
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) s[u] += __shfl_xor_sync(mask, s[u], d, LANES);
    if ((threadIdx.x & (LANES - 1)) == 0 && p + u < end) down(((T*)a.out)[p + u], (S)up(load<T, 1>((const T*)a.val + p + u).x[0]) * s[u]);
  }
}
template<class T, int LANES, int V, int C, int UNROLL>
DEV void sddmm_range(int row, int begin, int end, const Args& a) {
  Pack<T, V> x[C];
  row_of<T, LANES, V, C>((const T*)a.X, row, a.K, x);
  for (int p = begin; p < end; p += UNROLL) {
    typename Sum<T>::type s[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) dot_part<T, LANES, V, C, C >= 4>(s[u], x, (const T*)a.B, __ldg(a.idx + min(p + u, end - 1)), a.K);
    flush_dots<T, LANES, UNROLL>(s, p, end, a);
  }
}

// WORK 0: rows, 2: equal pieces of the entry list, 4: the same, each entry with its own row of X (COO), UNROLL side by side.
template<class T, int WORK, int LANES, int V, int C, int UNROLL>
DEV void sddmm(const Args& a) {
  const int g = (int)(((long long)blockIdx.x * blockDim.x + threadIdx.x) / LANES);
  if (WORK == 0) {
    if (g >= a.m) return;
    const int row = a.perm ? __ldg(a.perm + g) : g;
    sddmm_range<T, LANES, V, C, UNROLL>(row, __ldg(a.ptr + row), __ldg(a.ptr + row + 1), a);
    return;
  }
  const long long first = (long long)g * a.piece;
  if (first >= a.nnz) return;
  const int begin = (int)first, end = (int)min((long long)a.nnz, first + a.piece);
  if (WORK == 4) {
    for (int p = begin; p < end; p += UNROLL) {
      typename Sum<T>::type s[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const int e = min(p + u, end - 1);
        Pack<T, V> x[C];
        row_of<T, LANES, V, C>((const T*)a.X, __ldg(a.rows + e), a.K, x);
        dot_part<T, LANES, V, C, false>(s[u], x, (const T*)a.B, __ldg(a.idx + e), a.K);
      }
      flush_dots<T, LANES, UNROLL>(s, p, end, a);
    }
    return;
  }
  int p = begin, row = __ldg(a.rows + begin);
  while (p < end) {
    int row_end = __ldg(a.ptr + row + 1);
    while (row_end == p) row_end = __ldg(a.ptr + ++row + 1);
    const int stop = min(row_end, end);
    sddmm_range<T, LANES, V, C, UNROLL>(row, p, stop, a);
    p = stop; ++row;
  }
}

// Windows of 16 rows, blocks of 8 columns (idx), tensor cores; C steps of 16 dense columns hold the rows of X.
// position: for each lane of a block the four entries of CSR that its results belong to (-1: none).
template<int MATH, int C, int V>
DEV void sddmm_mma(const Args& a) {
  const int g = (int)(((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const int lane = threadIdx.x & 31, q = lane / 4, t = lane & 3;
  if (g >= a.pieces) return;
  const int window = __ldg(a.piece_row + g) & 0x7fffffff, end = __ldg(a.piece_end + g);
  const float *X = (const float*)a.X, *B = (const float*)a.B; float* out = (float*)a.out;
  const int r0 = max(__ldg(a.perm + window * 16 + q), 0), r1 = max(__ldg(a.perm + window * 16 + 8 + q), 0);
  Pack<float, 4> x0[C], x1[C];
#pragma unroll
  for (int c = 0; c < C; ++c) { x0[c] = quad<float, V>(X, r0, a.K, c * 16 + t * 4); x1[c] = quad<float, V>(X, r1, a.K, c * 16 + t * 4); }
  for (int p = __ldg(a.piece_begin + g); p < end; ++p) {
    const int j = __ldg(a.idx + (size_t)p * 8 + q);
    float acc[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll
    for (int c = 0; c < C; ++c) {
      Pack<float, 4> y = quad<float, V>(B, j, a.K, c * 16 + t * 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float w[4] = {x0[c].x[2 * i], x1[c].x[2 * i], x0[c].x[2 * i + 1], x1[c].x[2 * i + 1]}, b[2] = {y.x[2 * i], y.x[2 * i + 1]};
        u32 wh[4], wl[4], bh[2], bl[2];
#pragma unroll
        for (int v = 0; v < 4; ++v) { wh[v] = to_tf32(w[v]); wl[v] = to_tf32(tail_of(w[v], wh[v])); }
#pragma unroll
        for (int v = 0; v < 2; ++v) { bh[v] = to_tf32(b[v]); bl[v] = to_tf32(tail_of(b[v], bh[v])); }
        if (MATH == 1) { mma_tf32(acc[i], wl, bh); mma_tf32(acc[i], wh, bl); }
        mma_tf32(acc[i], wh, bh);
      }
    }
    Pack<int, 4> e = load<int, 4>(a.position + (size_t)p * 128 + lane * 4);
#pragma unroll
    for (int v = 0; v < 4; ++v) if (e.x[v] >= 0) out[e.x[v]] = __ldg((const float*)a.entry_val + e.x[v]) * (acc[0][v] + acc[1][v]);
  }
}

// WORK 0: LANES threads per row. 1: LANES threads per piece of a row. 2: a warp per piece of the entries, segmented sums.
// 3: slices of 32 rows (SELL), a thread per row. BATCH rows or pieces side by side (WORK 0, 1).
template<class T, class O, int WORK, int LANES, int UNROLL, int BATCH>
DEV void spmv(const Args& a) {
  typedef typename Sum<T>::type S;
  const T *val = (const T*)a.val, *B = (const T*)a.B; O* out = (O*)a.out;
  const int* idx = a.idx;
#define PRODUCT(p) ((S)up(load<T, 1>(val + (p)).x[0]) * (S)up(load<T, 1>(B + __ldg(idx + (p))).x[0]))
  if (WORK <= 1) {
    const int g = (int)(((long long)blockIdx.x * blockDim.x + threadIdx.x) / LANES);
    const int units = WORK == 1 ? a.pieces : a.m;
    if (BATCH == 1 ? g >= units : (long long)g * BATCH >= units) return;
    const int lane = threadIdx.x & (LANES - 1);
    const u32 mask = group_mask<LANES>();
    int tagged[BATCH], p[BATCH], end[BATCH]; S s[BATCH][UNROLL]; int longest = 0;
#pragma unroll
    for (int r = 0; r < BATCH; ++r) {
      const int u = BATCH == 1 ? g : min(g * BATCH + r, units - 1);
      tagged[r] = WORK == 1 ? __ldg(a.piece_row + u) : a.perm ? __ldg(a.perm + u) : u;
      p[r] = (WORK == 1 ? __ldg(a.piece_begin + u) : __ldg(a.ptr + tagged[r])) + lane;
      end[r] = WORK == 1 ? __ldg(a.piece_end + u) : __ldg(a.ptr + tagged[r] + 1);
      if (BATCH > 1 && g * BATCH + r >= units) end[r] = p[r];
      longest = max(longest, end[r] - p[r]);
#pragma unroll
      for (int u2 = 0; u2 < UNROLL; ++u2) s[r][u2] = 0;
    }
    if (BATCH == 1) {
      int at = p[0];
      for (; at + (UNROLL - 1) * LANES < end[0]; at += UNROLL * LANES) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) s[0][u] += PRODUCT(at + u * LANES);
      }
      for (; at < end[0]; at += LANES) s[0][0] += PRODUCT(at);
    } else {
      for (int t = 0; t < longest; t += UNROLL * LANES) {
#pragma unroll
        for (int r = 0; r < BATCH; ++r)
#pragma unroll
          for (int u = 0; u < UNROLL; ++u) if (p[r] + t + u * LANES < end[r]) s[r][u] += PRODUCT(p[r] + t + u * LANES);
      }
    }
#pragma unroll
    for (int r = 0; r < BATCH; ++r) {
#pragma unroll
      for (int u = 1; u < UNROLL; ++u) s[r][0] += s[r][u];
#pragma unroll
      for (int d = LANES / 2; d > 0; d /= 2) s[r][0] += __shfl_xor_sync(mask, s[r][0], d, LANES);
      if (lane == 0 && (BATCH == 1 || g * BATCH + r < units)) { O* q = out + (tagged[r] & 0x7fffffff); if (tagged[r] < 0) atomicAdd((S*)q, s[r][0]); else down(*q, s[r][0]); }
    }
  } else if (WORK == 2) {
    const long long w = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x & 31;
    const long long first = w * a.piece;
    if (first >= a.nnz) return;
    S* sums = (S*)a.out;
    const int begin = (int)first, end = (int)min((long long)a.nnz, first + a.piece);
    int carry_row = -1; S carry = 0;
    for (int q = begin; q < end; q += 32) {
      const int p = q + lane;
      int row = p < end ? __ldg(a.rows + p) : 0x7fffffff;
      S s = p < end ? PRODUCT(p) : (S)0;
      const int first_row = __shfl_sync(0xffffffffu, row, 0, 32);
      if (first_row == carry_row) { if (lane == 0) s += carry; }
      else if (lane == 0 && carry_row >= 0) atomicAdd(sums + carry_row, carry);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const S other = __shfl_up_sync(0xffffffffu, s, d, 32);
        const int other_row = __shfl_up_sync(0xffffffffu, row, d, 32);
        if (lane >= d && other_row == row) s += other;
      }
      const int next_row = __shfl_down_sync(0xffffffffu, row, 1, 32);
      if (lane < 31 && next_row != row && row != 0x7fffffff) atomicAdd(sums + row, s);
      carry_row = __shfl_sync(0xffffffffu, row, 31, 32);
      carry = __shfl_sync(0xffffffffu, s, 31, 32);
      if (carry_row == 0x7fffffff) carry_row = -1;
    }
    if (lane == 0 && carry_row >= 0) atomicAdd(sums + carry_row, carry);
  } else {
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= a.m) return;
    const int slice = r / 32, lane = r & 31;
    const int begin = __ldg(a.ptr + slice), end = __ldg(a.ptr + slice + 1);
    S s[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) s[u] = 0;
    int p = begin + lane;
    // Filled places have a value of zero and no column: they must not meet a NaN or an infinity of B.
#define FILLED_PRODUCT(p) (__ldg(idx + (p)) < 0 ? (S)0 : PRODUCT(p))
    for (; p + (UNROLL - 1) * 32 < end; p += UNROLL * 32) {
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) s[u] += FILLED_PRODUCT(p + u * 32);
    }
    for (; p < end; p += 32) s[0] += FILLED_PRODUCT(p);
#undef FILLED_PRODUCT
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
    down(out[__ldg(a.perm + r)], s[0]);
  }
}

// A block takes neighbouring rows of at most `piece` entries together: products into shared memory, then LANES threads
// add up each row. piece_row: first row of each block (pieces + 1 of them); a longer row is cut, with the sign bit set.
template<class T, class O, int LANES>
DEV void spmv_stream(const Args& a) {
  typedef typename Sum<T>::type S;
  DYNAMIC_SHARED(double, raw);
  S* product = (S*)raw;
  const T *val = (const T*)a.val, *B = (const T*)a.B; O* out = (O*)a.out;
  const int* idx = a.idx;
  const int b = blockIdx.x, tagged = __ldg(a.piece_row + b), begin = __ldg(a.piece_begin + b), end = __ldg(a.piece_end + b);
  if (tagged < 0) {
    S s = 0;
    for (int p = begin + threadIdx.x; p < end; p += blockDim.x) s += PRODUCT(p);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d, 32);
    if ((threadIdx.x & 31) == 0) atomicAdd((S*)a.out + (tagged & 0x7fffffff), s);
    return;
  }
  for (int p = begin + threadIdx.x; p < end; p += blockDim.x) product[p - begin] = PRODUCT(p);
  __syncthreads();
  const int last = __ldg(a.rows + b), lane = threadIdx.x & (LANES - 1);
  const u32 mask = group_mask<LANES>();
  for (int row = tagged + threadIdx.x / LANES; row < last; row += blockDim.x / LANES) {
    const int row_end = __ldg(a.ptr + row + 1) - begin;
    S s = 0;
    for (int p = __ldg(a.ptr + row) - begin + lane; p < row_end; p += LANES) s += product[p];
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) s += __shfl_xor_sync(mask, s, d, LANES);
    if (lane == 0) down(out[row], s);
  }
}
#undef PRODUCT

// ---- Preparation. A warp per row checks a CSR matrix with indices of type I (X: m + 1 pointers, B: nnz columns), writes
// it with 32-bit indices (ptr, idx) and the row of each entry (rows), and reports in five words of out: broken pointers, a
// column outside 0..n-1, falling columns, equal columns, entries of the longest row.
template<class I> DEV void inspect(const Args& a) {
  const I *ptr = (const I*)a.X, *idx = (const I*)a.B;
  int *to_ptr = (int*)a.ptr, *to_idx = (int*)a.idx, *to_rows = (int*)a.rows, *report = (int*)a.out;
  const int row = (int)(((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x & 31;
  if (row >= a.m) return;
  const I begin = ptr[row], end = ptr[row + 1];
  if (lane == 0) { to_ptr[row] = (int)begin; if (row == a.m - 1) to_ptr[a.m] = (int)end; }
  if (begin < 0 || begin > end || end > a.nnz || (row == 0 && begin != 0) || (row == a.m - 1 && end != a.nnz)) { report[0] = 1; return; }
  bool outside = false, falling = false, equal = false;
  for (I p = begin + lane; p < end; p += 32) {
    const I j = idx[p], before = p > begin ? idx[p - 1] : (I)-1;
    outside |= j < 0 || j >= a.n; falling |= p > begin && j < before; equal |= p > begin && j == before;
    to_idx[p] = (int)j; to_rows[p] = row;
  }
  if (outside) report[1] = 1;
  if (falling) report[2] = 1;
  if (equal) report[3] = 1;
  if (lane == 0 && end - begin > report[4]) atomicMax(report + 4, (int)(end - begin));
}
DEV int pieces_in(int length, int piece) { return max(1, (int)(((long long)length + piece - 1) / piece)); }
// A thread per row: pieces of at most `piece` entries that it is cut into.
DEV void count_pieces(const Args& a) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < a.m) ((int*)a.out)[row] = pieces_in(a.ptr[row + 1] - a.ptr[row], a.piece);
}
// A warp per row writes its pieces; X: running sums of the counts, 64 bits each.
DEV void fill_pieces(const Args& a) {
  const int row = (int)(((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x & 31;
  if (row >= a.m) return;
  const int begin = a.ptr[row], end = a.ptr[row + 1], count = pieces_in(end - begin, a.piece);
  const long long first = ((const long long*)a.X)[row] - count;
  const int tagged = count > 1 ? (int)((u32)row | 0x80000000u) : row;
  for (int k = lane; k < count; k += 32) {
    const int from = begin + k * a.piece;
    ((int*)a.piece_row)[first + k] = tagged; ((int*)a.piece_begin)[first + k] = from; ((int*)a.piece_end)[first + k] = min(end, from + a.piece);
  }
}

#ifdef EMULATED
#define KERNEL(name, ...) extern "C" int name(unsigned grid, unsigned block, unsigned shared, const void* args) { \
  const Args a = *(const Args*)args; return emulated::launch([&] { __VA_ARGS__(a); }, grid, block, shared); }
#else
#define KERNEL(name, ...) extern "C" __global__ void name(Args a) { __VA_ARGS__(a); }
#endif
