// A sparse pattern in the forms that kernels.cu reads, made on the host. Values are float; `packed` holds pairs of 16 bits.
#pragma once
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>
using std::string;
using std::vector;

struct Csr { int m = 0, n = 0, nnz = 0; vector<int> ptr, idx, rows; vector<float> val; int len(int i) const { return ptr[i + 1] - ptr[i]; } };

inline void complete(Csr& a) {  // row of each entry, and positive values of a fixed sequence
  a.rows.resize(a.nnz); a.val.resize(a.nnz);
  uint32_t s = 12345;
  for (auto& v : a.val) { s = s * 1664525u + 1013904223u; v = 0.1f + (s >> 8) * (1.0f / 16777216.0f); }
  for (int i = 0; i < a.m; ++i) for (int p = a.ptr[i]; p < a.ptr[i + 1]; ++p) a.rows[p] = i;
}

struct Key {  // what a form depends on; layout: rows pieces sell stream columns tf32 bf16 f16 sddmm
  string layout; int piece = 0, reorder = 0, sigma = 0, window = 0;
  string text() const { return layout + "/" + std::to_string(piece) + "/" + std::to_string(reorder) + "/" + std::to_string(sigma) + "/" + std::to_string(window); }
};
inline bool is_windows(const Key& k) { return k.window > 0; }
inline Key without_piece(Key k) { if (is_windows(k)) k.piece = 0; return k; }
struct Form {
  vector<int> ptr, idx, rows, perm, piece_row, piece_begin, piece_end, position;
  vector<float> val; vector<uint32_t> packed;
  bool shared = false;  // some result row is added to by several groups: the result must be zero before
  bool refused = false;  // larger than allowed
};
const int SHARED_BIT = INT_MIN;
const long long MOST_VALUES = 400000000LL;
const double MOST_PADDING = 10;  // stored values per entry of a window format

// reorder 0: as they are, 1: falling length, 2: by their columns, first column first
inline vector<int> row_order(const Csr& a, int reorder) {
  vector<int> order(a.m); std::iota(order.begin(), order.end(), 0);
  if (reorder == 1) std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return a.len(x) > a.len(y); });
  if (reorder == 2) std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
    return std::lexicographical_compare(a.idx.begin() + a.ptr[x], a.idx.begin() + a.ptr[x + 1], a.idx.begin() + a.ptr[y], a.idx.begin() + a.ptr[y + 1]); });
  return order;
}

// units [begin, end) of `row`, cut into pieces of at most `piece` (0: whole); empty rows keep one empty piece
inline void cut(Form& f, int row, int begin, int end, int piece) {
  const bool shared = piece && end - begin > piece;
  f.shared |= shared;
  int p = begin;
  do {
    const int stop = shared ? std::min(end, p + piece) : end;
    f.piece_row.push_back(shared ? row | SHARED_BIT : row); f.piece_begin.push_back(p); f.piece_end.push_back(stop);
    p = stop;
  } while (p < end);
}

inline void pieces_of(const Csr& a, const Key& k, Form& f) {
  for (int i = 0; i < a.m; ++i) cut(f, i, a.ptr[i], a.ptr[i + 1], k.piece);
  if (!k.reorder) return;
  vector<int> order(f.piece_row.size()); std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return f.piece_end[x] - f.piece_begin[x] > f.piece_end[y] - f.piece_begin[y]; });
  Form g;
  for (int o : order) { g.piece_row.push_back(f.piece_row[o]); g.piece_begin.push_back(f.piece_begin[o]); g.piece_end.push_back(f.piece_end[o]); }
  g.shared = f.shared; f = std::move(g);
}

inline void sell_of(const Csr& a, const Key& k, Form& f) {
  f.perm.resize(a.m); std::iota(f.perm.begin(), f.perm.end(), 0);
  const long long w = k.sigma ? k.sigma : a.m;
  if (w > 1) for (long long s = 0; s < a.m; s += w) std::stable_sort(f.perm.begin() + s, f.perm.begin() + std::min<long long>(a.m, s + w), [&](int x, int y) { return a.len(x) > a.len(y); });
  const int slices = (a.m + 31) / 32; f.ptr.assign(slices + 1, 0);
  long long total = 0;
  for (int s = 0; s < slices; ++s) {
    int widest = 0; for (int l = 0; l < 32 && s * 32 + l < a.m; ++l) widest = std::max(widest, a.len(f.perm[s * 32 + l]));
    total += 32LL * widest; if (total > MOST_VALUES) { f = Form(); f.refused = true; return; }
    f.ptr[s + 1] = int(total);
  }
  f.idx.assign(total, 0); f.val.assign(total, 0.f);
  for (int r = 0; r < a.m; ++r) for (int q = 0, row = f.perm[r]; q < a.len(row); ++q) {
    const size_t at = f.ptr[r / 32] + (size_t)q * 32 + r % 32;
    f.idx[at] = a.idx[a.ptr[row] + q]; f.val[at] = a.val[a.ptr[row] + q];
  }
}

// neighbouring rows of at most `piece` entries together (and at most `piece` rows); rows: the row after a block's last
inline void stream_of(const Csr& a, const Key& k, Form& f) {
  for (int i = 0; i < a.m;) {
    if (a.len(i) > k.piece) { cut(f, i, a.ptr[i], a.ptr[i + 1], k.piece); while (f.rows.size() < f.piece_row.size()) f.rows.push_back(i + 1); ++i; continue; }
    int last = i + 1;
    while (last < a.m && last - i < k.piece && a.ptr[last + 1] - a.ptr[i] <= k.piece) ++last;
    f.piece_row.push_back(i); f.piece_begin.push_back(a.ptr[i]); f.piece_end.push_back(a.ptr[last]); f.rows.push_back(last);
    i = last;
  }
}

inline uint32_t bits_of(float f) { uint32_t x; memcpy(&x, &f, 4); return x; }
inline uint16_t bf16_of(float f) { const uint32_t x = bits_of(f); return uint16_t((x + 0x7fff + (x >> 16 & 1)) >> 16); }
inline uint16_t f16_of(float f) { const _Float16 x = (_Float16)f; uint16_t h; memcpy(&h, &x, 2); return h; }

// Windows of `window` rows over the columns that occur in them; ptr: first block of each window. cut_windows makes the pieces.
inline void windows_of(const Csr& a, const Key& k, Form& f) {
  const int H = k.window, wide = k.layout == "columns" ? 1 : k.layout == "bf16" || k.layout == "f16" ? 16 : 8;
  const vector<int> order = row_order(a, k.reorder);
  const int windows = (a.m + H - 1) / H;
  f.perm.assign((size_t)windows * H, -1); f.ptr.push_back(0);
  std::copy(order.begin(), order.end(), f.perm.begin());
  struct Entry { int col, slot, at; };
  vector<Entry> e;
  long long blocks = 0;
  for (int w = 0; w < windows; ++w) {
    e.clear();
    for (int r = 0; r < H; ++r) { const int row = f.perm[(size_t)w * H + r]; if (row >= 0) for (int p = a.ptr[row]; p < a.ptr[row + 1]; ++p) e.push_back({a.idx[p], r, p}); }
    std::sort(e.begin(), e.end(), [](const Entry& x, const Entry& y) { return x.col != y.col ? x.col < y.col : x.slot < y.slot; });
    int columns = 0; for (size_t i = 0; i < e.size(); ++i) columns += !i || e[i].col != e[i - 1].col;
    const long long first = blocks, added = (columns + wide - 1) / wide;
    blocks += added;
    if ((double)blocks * wide * H > MOST_PADDING * a.nnz + 4096 || blocks * wide * H > MOST_VALUES) { f = Form(); f.refused = true; return; }
    f.idx.resize(blocks * wide, e.empty() ? 0 : e.back().col);  // columns that fill up the last block have values of zero
    if (k.layout == "sddmm") f.position.resize(blocks * 128, -1);
    else if (wide == 16) f.packed.resize(blocks * 8 * H, 0);
    else f.val.resize(blocks * wide * H, 0.f);
    int c = -1;
    for (size_t i = 0; i < e.size(); ++i) {
      if (!i || e[i].col != e[i - 1].col) ++c;
      const size_t b = first + c / wide; const int in = c % wide, r = e[i].slot; const float v = a.val[e[i].at];
      f.idx[b * wide + in] = e[i].col;
      if (wide == 1) f.val[b * H + r] = v;
      else if (k.layout == "sddmm") f.position[b * 128 + ((r % 8) * 4 + in / 2) * 4 + (r / 8) * 2 + in % 2] = e[i].at;
      else if (k.layout == "tf32") f.val[b * 8 * H + ((r % 8) * 4 + in / 2) * (H / 4) + (H == 16 ? r / 8 + 2 * (in % 2) : in % 2)] = v;
      else {
        uint32_t& x = f.packed[b * 8 * H + ((r % 8) * 4 + in / 4) * (H / 4) + (H == 16 ? r / 8 + 2 * (in % 4 / 2) : in % 4 / 2)];
        x |= (uint32_t)(k.layout == "bf16" ? bf16_of(v) : f16_of(v)) << 16 * (in % 2);
      }
    }
    f.ptr.push_back((int)blocks);
  }
}
inline Form cut_windows(const Form& base, int piece) {
  Form f; f.refused = base.refused;
  for (size_t w = 0; w + 1 < base.ptr.size(); ++w) cut(f, (int)w, base.ptr[w], base.ptr[w + 1], piece);
  return f;
}

inline Form build(const Csr& a, const Key& k) {
  Form f;
  if (k.layout == "rows") f.perm = row_order(a, k.reorder);
  else if (k.layout == "pieces") pieces_of(a, k, f);
  else if (k.layout == "sell") sell_of(a, k, f);
  else if (k.layout == "stream") stream_of(a, k, f);
  else windows_of(a, k, f);
  return f;
}
