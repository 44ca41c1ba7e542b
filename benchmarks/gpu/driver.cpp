// Checks and times the kernels of kernels.cu by a plan. usage: driver KERNELS PLAN OUT SECONDS [FIRST_MATRIX]
// KERNELS holds names.txt (file name, kernel name) and cubins. Plan lines (space.py writes them):
//   S                      check only: each kernel against a full float64 result, no times
//   M name path            a pattern: int32 m, n, nnz, ptr, idx; `builtin:NAME` is one of the degenerate ones below
//   O kind K dtype         an operation; dense operands and the reference are made
//   L                      cuSPARSE's algorithms
//   C id kernel layout lanes tile block columns_fast reorder piece sigma batch window through_float tolerance
// OUT/rows.csv: matrix, op, dtype, id, status, three times in ns, largest error. Status: ok, wrong, padding (the format
// would be too large), registers (too many for the block), unsupported (cuSPARSE), excluded (its kernel failed before).
// OUT/bad.txt: kernels that faulted or failed a check, left out from then on; OUT/at.txt: number of the matrix in work. Exit 3: the GPU reported an error; run again from at.txt.
#ifdef EMULATED_DRIVER
#include "emulate_driver.h"
#include "kernels.cu"
#include KERNEL_LIST
#else
#include <cuda.h>
#endif
#ifdef WITH_CUSPARSE
#include <cuda_runtime_api.h>
#include <cusparse.h>
#endif
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include "formats.h"

static string out_dir, running;  // running: the kernel launched last
static void give_up(const char* what, const char* why) {
  fprintf(stderr, "%s: %s (kernel %s)\n", what, why, running.c_str());
  if (!running.empty()) { FILE* f = fopen((out_dir + "/bad.txt").c_str(), "a"); if (f) { fprintf(f, "%s\n", running.c_str()); fclose(f); } }
  fflush(nullptr); _Exit(3);
}
#define CK(x) do { CUresult e_ = (x); if (e_ != CUDA_SUCCESS) { const char* s_ = nullptr; cuGetErrorString(e_, &s_); give_up(#x, s_ ? s_ : "?"); } } while (0)
static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

#ifndef EMULATED_DRIVER
struct Args {  // as in kernels.cu
  CUdeviceptr ptr, idx, val, rows, perm, piece_row, piece_begin, piece_end, position, B, X, out, entry_val;
  long long count; int m, n, nnz, K, pieces, piece, row_blocks, col_blocks, columns_fast; uint32_t seed; float scale;
};
#endif
template<class P> static void put(P& p, CUdeviceptr d) { p = (P)d; }

// ---- patterns
static Csr builtin(const string& name) {
  Csr a; vector<vector<int>> rows; uint32_t s = 99;
  auto random = [&](uint32_t n) { s = s * 1664525u + 1013904223u; return (int)((s >> 8) % n); };
  if (name == "one") { a.n = 1; rows = {{0}}; }
  else if (name == "nothing") { a.n = 5; rows.assign(37, {}); }
  else if (name == "column") { a.n = 1; rows.assign(70, {0}); rows[3].clear(); rows[69].clear(); }
  else if (name == "row") { a.n = 700; rows.assign(3, {}); for (int j = 0; j < 700; ++j) rows[1].push_back(j); }
  else if (name == "dense") { a.n = 33; rows.assign(45, {}); for (auto& r : rows) for (int j = 0; j < 33; ++j) r.push_back(j); }
  else if (name == "ends") {  // rows whose lengths are pieces' sizes, one less and one more, and empty ones between
    a.n = 600; for (int length : {1, 2, 4, 8, 16, 32, 64, 128, 512}) for (int d : {-1, 0, 1}) { rows.push_back({}); for (int j = 0; j < length + d; ++j) rows.back().push_back(j); }
    rows.insert(rows.begin(), 3, {}); rows.insert(rows.end(), 2, {});
  } else {  // "random": lengths 0 to 12, some long; "blocks": the same eight columns in neighbouring rows
    a.n = 300; rows.assign(150, {});
    for (size_t i = 0; i < rows.size(); ++i) { std::set<int> c; const int length = i % 41 == 40 ? 90 : random(13); for (int q = 0; q < length; ++q) c.insert(name == "blocks" ? (int)(i / 20 * 13 + random(24)) : random(300)); rows[i].assign(c.begin(), c.end()); }
  }
  a.m = (int)rows.size(); a.ptr.push_back(0);
  for (auto& r : rows) { a.idx.insert(a.idx.end(), r.begin(), r.end()); a.ptr.push_back((int)a.idx.size()); }
  a.nnz = a.ptr.back(); complete(a); return a;
}
static Csr read_csr(const string& path) {
  if (path.rfind("builtin:", 0) == 0) return builtin(path.substr(8));
  Csr a; FILE* f = fopen(path.c_str(), "rb"); int h[3];
  if (!f || fread(h, 4, 3, f) != 3) { fprintf(stderr, "cannot read %s\n", path.c_str()); _Exit(2); }
  a.m = h[0]; a.n = h[1]; a.nnz = h[2]; a.ptr.resize(a.m + 1); a.idx.resize(a.nnz);
  if (fread(a.ptr.data(), 4, a.m + 1, f) != size_t(a.m + 1) || fread(a.idx.data(), 4, a.nnz, f) != size_t(a.nnz)) { fprintf(stderr, "%s is too short\n", path.c_str()); _Exit(2); }
  fclose(f); complete(a); return a;
}

// ---- the plan, and the host forms of the next matrices made by threads while the GPU works
struct Config { string id, fn; Key key; int lanes, tile, block, columns_fast, batch, through_float; float tolerance; };
struct Step { char tag; string kind, dtype; int K; Config c; };
struct Task { string name, path; vector<Step> steps; Csr a; std::map<string, std::unique_ptr<Form>> forms; bool ready = false; };
static bool check_only = false;
static bool has_form(const Key& k) { return k.layout != "entries" && k.layout != "coo" && !(k.layout == "rows" && !k.reorder); }
static vector<Task> read_plan(const char* path) {
  vector<Task> tasks; std::ifstream in(path); string line, layout;
  if (!in) { fprintf(stderr, "no plan %s\n", path); _Exit(2); }
  while (std::getline(in, line)) {
    std::istringstream f(line); Step s; if (!(f >> s.tag)) continue;
    if (s.tag == 'S') check_only = true;
    else if (s.tag == 'M') { tasks.emplace_back(); f >> tasks.back().name >> tasks.back().path; }
    else {
      if (s.tag == 'O') f >> s.kind >> s.K >> s.dtype;
      if (s.tag == 'C') { Config& c = s.c; f >> c.id >> c.fn >> c.key.layout >> c.lanes >> c.tile >> c.block >> c.columns_fast >> c.key.reorder >> c.key.piece >> c.key.sigma >> c.batch >> c.key.window >> c.through_float >> c.tolerance; }
      if (!f) { fprintf(stderr, "plan: %s\n", line.c_str()); _Exit(2); }
      tasks.back().steps.push_back(s);
    }
  }
  return tasks;
}
struct Prefetch {
  vector<Task>& tasks; size_t next, done, ahead; std::mutex lock; std::condition_variable changed; vector<std::thread> threads; bool stop = false;
  Prefetch(vector<Task>& t, size_t first, unsigned workers) : tasks(t), next(first), done(first), ahead(workers + 2) { for (unsigned i = 0; i < workers; ++i) threads.emplace_back([this] { work(); }); }
  ~Prefetch() { { std::lock_guard<std::mutex> g(lock); stop = true; } changed.notify_all(); for (auto& t : threads) t.join(); }
  void work() {
    for (;;) {
      size_t i; { std::unique_lock<std::mutex> g(lock); changed.wait(g, [&] { return stop || next >= tasks.size() || next < done + ahead; }); if (stop || next >= tasks.size()) return; i = next++; }
      Task& t = tasks[i]; t.a = read_csr(t.path);
      for (auto& s : t.steps) if (s.tag == 'C' && has_form(s.c.key)) { const Key k = without_piece(s.c.key); auto& f = t.forms[k.text()]; if (!f) f.reset(new Form(build(t.a, k))); if (stop) return; }
      { std::lock_guard<std::mutex> g(lock); t.ready = true; } changed.notify_all();
    }
  }
  Task& wait(size_t i) { std::unique_lock<std::mutex> g(lock); changed.wait(g, [&] { return tasks[i].ready; }); done = i; changed.notify_all(); return tasks[i]; }
  void drop(size_t i) { tasks[i].forms.clear(); tasks[i].a = Csr(); }
};

// ---- the GPU
static std::map<string, CUfunction> functions; static std::set<string> bad;
static CUstream stream; static CUevent e0, e1; static CUdeviceptr worst_d;
static CUfunction fn(const string& name) { auto it = functions.find(name); if (it == functions.end()) { fprintf(stderr, "no kernel %s\n", name.c_str()); _Exit(4); } return it->second; }
static void launch(CUfunction f, Args& g, unsigned grid, int block, unsigned shared = 0) { void* p[] = {&g}; CK(cuLaunchKernel(f, grid, 1, 1, (unsigned)block, 1, 1, shared, stream, p, nullptr)); }
static double elapsed_ns() { float ms; CK(cuEventElapsedTime(&ms, e0, e1)); return ms * 1e6; }
// In the order of `stream`: cuMemcpyHtoD returns before the last part of pageable memory has arrived, and a stream that does
// not block waits for nothing that goes on in the default one (one of 252,543 results was wrong by that).
static void to_device(CUdeviceptr d, const void* p, size_t n) { CK(cuMemcpyHtoDAsync(d, p, n, stream)); CK(cuStreamSynchronize(stream)); }
static size_t size_of(const string& dtype) { return dtype == "f64" ? 8 : dtype == "f32" ? 4 : 2; }
struct Buffer { CUdeviceptr d = 0; size_t bytes = 0; void need(size_t n) { n += 64; if (n <= bytes) return; if (d) CK(cuMemFree(d)); CK(cuMemAlloc(&d, n)); bytes = n; } };
static Buffer B, X, C, R, wide, stage;  // wide: float sums of a 16-bit result

struct DeviceForm { CUdeviceptr ptr = 0, idx = 0, rows = 0, perm = 0, piece_row = 0, piece_begin = 0, piece_end = 0, position = 0, val = 0; int pieces = 0; bool shared = false, refused = false; };
struct Matrix {
  Task& task; Csr& a; CUdeviceptr ptr, idx, rows; std::map<string, CUdeviceptr> vals; std::map<string, DeviceForm> forms; vector<CUdeviceptr> all;
  template<class T> CUdeviceptr up(const vector<T>& v) { if (v.empty()) return 0; CUdeviceptr d; CK(cuMemAlloc(&d, v.size() * sizeof(T) + 16)); to_device(d, v.data(), v.size() * sizeof(T)); all.push_back(d); return d; }
  explicit Matrix(Task& t) : task(t), a(t.a) { ptr = up(a.ptr); idx = up(a.idx); rows = up(a.rows); }
  ~Matrix() { for (auto d : all) cuMemFree(d); }
  CUdeviceptr values(const vector<float>& v, const string& dtype) {
    if (dtype == "f32" || v.empty()) return up(v);
    stage.need(v.size() * 4); to_device(stage.d, v.data(), v.size() * 4);
    CUdeviceptr d; CK(cuMemAlloc(&d, v.size() * size_of(dtype) + 16)); all.push_back(d);
    Args g; memset(&g, 0, sizeof g); g.count = (long long)v.size(); put(g.X, stage.d); put(g.out, d); launch(fn("cast_" + dtype), g, 1024, 256); CK(cuStreamSynchronize(stream)); return d;
  }
  CUdeviceptr val(const string& dtype) { auto& d = vals[dtype]; if (!d) d = values(a.val, dtype); return d; }
  const DeviceForm& form(const Key& k, const string& dtype) {
    auto it = forms.find(k.text() + dtype); if (it != forms.end()) return it->second;
    const Key whole = without_piece(k);
    auto& f = task.forms[whole.text()]; if (!f) f.reset(new Form(build(a, whole)));
    DeviceForm d; d.refused = f->refused;
    if (d.refused) return forms[k.text() + dtype] = d;
    Key values_of = whole; values_of.reorder += 100;  // the part that all pieces of a window format share
    auto shared = forms.find(values_of.text() + dtype);
    if (shared != forms.end()) d = shared->second;
    else {
      d.ptr = is_windows(k) ? 0 : up(f->ptr); d.idx = up(f->idx); d.rows = up(f->rows); d.perm = up(f->perm); d.position = up(f->position);
      d.val = f->packed.empty() ? values(f->val, k.layout == "tf32" ? "f32" : dtype) : up(f->packed);
      if (is_windows(k)) forms[values_of.text() + dtype] = d;
    }
    const Form cuts = is_windows(k) ? cut_windows(*f, k.piece) : Form(); const Form& p = is_windows(k) ? cuts : *f;
    d.shared = p.shared; d.pieces = (int)p.piece_row.size(); d.piece_row = up(p.piece_row); d.piece_begin = up(p.piece_begin); d.piece_end = up(p.piece_end);
    return forms[k.text() + dtype] = d;
  }
};

struct Operation { string kind, dtype, text; int K = 1; long long result = 0; double best = 1e30; bool wrong = false; };
static const uint32_t SEED_B = 7, SEED_X = 11;
static double dense(long long i, uint32_t seed, const string& dtype) {
  uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)(i >> 32) * 40503u + seed;
  x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; x ^= x >> 16;
  float f = 0.1f + (x >> 8) * (1.0f / 16777216.0f);
  if (dtype == "f16") { const _Float16 h = (_Float16)f; f = (float)h; }
  if (dtype == "bf16") { const uint32_t b = (uint32_t)bf16_of(f) << 16; memcpy(&f, &b, 4); }
  return f;
}
static double rounded(float v, const string& dtype) { if (dtype == "f16") return (double)(float)(_Float16)v; if (dtype == "bf16") { const uint32_t b = (uint32_t)bf16_of(v) << 16; float f; memcpy(&f, &b, 4); return f; } return v; }
static vector<double> to_host(CUdeviceptr d, size_t n, const string& dtype) {
  vector<char> raw(n * size_of(dtype) + 8); vector<double> v(n); if (n) CK(cuMemcpyDtoH(raw.data(), d, n * size_of(dtype)));
  for (size_t i = 0; i < n; ++i) {
    if (dtype == "f64") memcpy(&v[i], &raw[i * 8], 8);
    else if (dtype == "f32") { float f; memcpy(&f, &raw[i * 4], 4); v[i] = f; }
    else if (dtype == "f16") { _Float16 h; memcpy(&h, &raw[i * 2], 2); v[i] = (double)(float)h; }
    else { uint16_t h; memcpy(&h, &raw[i * 2], 2); const uint32_t b = (uint32_t)h << 16; float f; memcpy(&f, &b, 4); v[i] = f; }
  }
  return v;
}
static float worst(CUdeviceptr x, const Operation& o, float scale) {
  CK(cuMemsetD32Async(worst_d, 0, 1, stream)); Args g; memset(&g, 0, sizeof g); put(g.B, x); put(g.X, R.d); put(g.out, worst_d); g.count = o.result; g.scale = scale;
  launch(fn("compare_" + o.dtype), g, check_only ? 1 : 512, 256); int bits; CK(cuMemcpyDtoHAsync(&bits, worst_d, 4, stream)); CK(cuStreamSynchronize(stream)); float f; memcpy(&f, &bits, 4); return f;
}

struct Ready { Args g; CUfunction f; unsigned grid, shared; int block; bool zero, through; };
static bool fits(CUfunction f, int block) { int most; CK(cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f)); return block <= most; }
static bool prepare(Matrix& M, const Operation& o, const Config& c, Ready& r) {
  Csr& a = M.a; Args& g = r.g; memset(&g, 0, sizeof g); const string& layout = c.key.layout;
  put(g.ptr, M.ptr); put(g.idx, M.idx); put(g.val, M.val(o.dtype)); put(g.rows, M.rows); put(g.B, B.d); put(g.X, X.d); put(g.out, c.through_float ? wide.d : C.d); put(g.entry_val, M.val(o.dtype));
  g.m = a.m; g.n = a.n; g.nnz = a.nnz; g.K = o.K; g.piece = c.key.piece; g.columns_fast = c.columns_fast;
  r.f = fn(c.fn); r.block = c.block; r.shared = 0; r.zero = false; r.through = c.through_float;
  long long units = a.m, per = c.block / c.lanes;
  if (layout == "entries" || layout == "coo") { units = (a.nnz + (long long)c.key.piece - 1) / c.key.piece; r.zero = o.kind != "sddmm"; }
  else if (has_form(c.key)) {
    const DeviceForm& d = M.form(c.key, o.dtype); if (d.refused) return false;
    if (d.ptr || layout == "sell") put(g.ptr, d.ptr);
    if (layout != "rows" && layout != "pieces" && layout != "stream") { put(g.idx, d.idx); put(g.val, d.val); }
    if (d.rows) put(g.rows, d.rows);
    put(g.perm, d.perm); put(g.piece_row, d.piece_row); put(g.piece_begin, d.piece_begin); put(g.piece_end, d.piece_end); put(g.position, d.position);
    g.pieces = d.pieces; r.zero = d.shared && o.kind != "sddmm"; if (d.pieces) units = d.pieces;
    if (layout == "stream") { per = 1; r.shared = (unsigned)(c.key.piece * (o.dtype == "f64" ? 8 : 4)); }
    if (layout == "sell") per = c.block;
  }
  units = (units + c.batch - 1) / c.batch;
  const long long rb = std::max(1LL, (units + per - 1) / per), cb = o.kind == "spmm" ? (o.K + c.tile - 1) / c.tile : 1;
  g.row_blocks = (int)rb; g.col_blocks = (int)cb; r.grid = (unsigned)(rb * cb); return rb * cb <= INT_MAX;
}
static void run_once(const Operation& o, Ready& r) {
  const size_t words = r.through || o.dtype == "f32" ? o.result : (o.result * size_of(o.dtype) + 3) / 4;
  if (r.zero) CK(cuMemsetD32Async(r.through ? wide.d : C.d, 0, words, stream));
  launch(r.f, r.g, r.grid, r.block, r.shared);
  if (!r.through) return;
  Args g; memset(&g, 0, sizeof g); put(g.X, wide.d); put(g.out, C.d); g.count = o.result;
  launch(fn("cast_" + o.dtype), g, (unsigned)std::max(1LL, std::min(1024LL, (o.result + 255) / 256)), 256);
}

// once() enqueues one whole operation; it has run before. Three samples in ns, each the mean of 3 to 20 launches of a graph.
template<class F> static void timed(F&& once, double ns[3], double best) {
  CK(cuEventRecord(e0, stream)); once(); CK(cuEventRecord(e1, stream)); CK(cuStreamSynchronize(stream)); const double first = elapsed_ns();
  if (first > 8 * best && first > 1e5) { ns[0] = ns[1] = ns[2] = first; return; }  // far from the best: one time is enough
  if (first > 5e6) { ns[0] = ns[1] = ns[2] = first; if (first > 1e8) return; for (int k = 1; k < 3; ++k) { CK(cuEventRecord(e0, stream)); once(); CK(cuEventRecord(e1, stream)); CK(cuStreamSynchronize(stream)); ns[k] = elapsed_ns(); } return; }
  const int reps = std::max(3, std::min(20, int(1e5 / first)));
  CUgraph g; CUgraphExec x; CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); for (int r = 0; r < reps; ++r) once(); CK(cuStreamEndCapture(stream, &g)); CK(cuGraphInstantiate(&x, g, 0));
  CK(cuGraphLaunch(x, stream));
  for (int k = 0; k < 3; ++k) { CK(cuEventRecord(e0, stream)); CK(cuGraphLaunch(x, stream)); CK(cuEventRecord(e1, stream)); CK(cuStreamSynchronize(stream)); ns[k] = elapsed_ns() / reps; }
  cuGraphExecDestroy(x); cuGraphDestroy(g);
}

// Operands and the result of a plain kernel; that result against float64 on the host (64 rows; all of them in a check).
static void open_operation(Matrix& M, Operation& o) {
  Csr& a = M.a; const size_t s = size_of(o.dtype); const long long nb = (long long)a.n * o.K, nx = o.kind == "sddmm" ? (long long)a.m * o.K : 1;
  o.result = o.kind == "sddmm" ? a.nnz : (long long)a.m * o.K;
  B.need(nb * s); X.need(nx * s); C.need(o.result * s); R.need(o.result * s); wide.need(o.result * 4);
  running = "fill";
  for (int i = 0; i < 2; ++i) { Args g; memset(&g, 0, sizeof g); put(g.out, i ? X.d : B.d); g.count = i ? nx : nb; g.seed = i ? SEED_X : SEED_B; launch(fn("fill_" + o.dtype), g, check_only ? 4 : 1024, 256); }
  Config d{"", "plain_" + o.kind + (o.kind == "sddmm" ? "_" + std::to_string(std::max(1, (o.K + 31) / 32)) : "") + "_" + o.dtype, Key(), 32, 32, 128, 1, 1, 0, 0};
  d.key.layout = "rows"; d.key.piece = 1;
  Ready r; prepare(M, o, d, r); running = d.fn; CK(cuMemsetD8Async(C.d, 0xff, o.result * s, stream)); run_once(o, r); CK(cuMemcpyDtoDAsync(R.d, C.d, o.result * s, stream)); CK(cuStreamSynchronize(stream)); running.clear();
  const double tolerance = o.dtype == "f64" ? 1e-10 : o.dtype == "f32" ? 1e-3 : o.dtype == "f16" ? 3e-3 : 2e-2; double err = 0;
  const int rows = check_only ? a.m : 64, most = check_only ? INT_MAX : 64, step = check_only ? 1 : 7;
  for (int t = 0; t < rows; ++t) {
    const int i = check_only ? t : (int)((long long)t * 2654435761u % std::max(1, a.m)), b = a.ptr[i], n = a.len(i);
    if (o.kind == "sddmm") {
      const int count = std::min(n, most); const auto h = to_host(R.d + (size_t)b * s, count, o.dtype);
      for (int p = 0; p < count; ++p) { double x = 0; for (int k = 0; k < o.K; ++k) x += dense((long long)i * o.K + k, SEED_X, o.dtype) * dense((long long)a.idx[b + p] * o.K + k, SEED_B, o.dtype); x *= rounded(a.val[b + p], o.dtype); err = std::max(err, h[p] == h[p] ? std::fabs(h[p] - x) / (1e-3 + std::fabs(x)) : 1e30); }
    } else {
      const auto h = to_host(R.d + (size_t)i * o.K * s, o.K, o.dtype);
      for (int k = 0; k < o.K; k += step) { double x = 0; for (int p = b; p < b + n; ++p) x += rounded(a.val[p], o.dtype) * dense((long long)a.idx[p] * o.K + k, SEED_B, o.dtype); err = std::max(err, h[k] == h[k] ? std::fabs(h[k] - x) / (1e-3 + std::fabs(x)) : 1e30); }
    }
  }
  if (!(err < tolerance)) { o.wrong = true; fprintf(stderr, "REFERENCE WRONG %s %s %s: %g\n", M.task.name.c_str(), o.text.c_str(), o.dtype.c_str(), err); }
}

static FILE* rows_file; static int rows_done = 0, rows_wrong = 0;
static void row(const Matrix& M, const Operation& o, const string& id, const char* status, const double* ns, float err) {
  fprintf(rows_file, "%s,%s,%s,%s,%s", M.task.name.c_str(), o.text.c_str(), o.dtype.c_str(), id.c_str(), status);
  if (ns) fprintf(rows_file, ",%.0f,%.0f,%.0f,%.1e\n", ns[0], ns[1], ns[2], err); else fprintf(rows_file, ",,,,%.1e\n", err);
  ++rows_done;
}
static void keep_result(const Matrix& M, const Operation& o, const Config& c) {  // for tests that compare with scipy
  static const char* dir = getenv("KEEP_RESULTS"); if (!dir) return;
  const auto v = to_host(C.d, o.result, o.dtype); FILE* f = fopen((string(dir) + "/" + M.task.name + "," + o.text + "," + o.dtype + "," + c.id).c_str(), "wb");
  if (f) { fwrite(v.data(), 8, v.size(), f); fclose(f); }
}
static void measure(Matrix& M, Operation& o, const Config& c) {
  if (bad.count(c.fn)) { row(M, o, c.id, "excluded", nullptr, 0); return; }
  if (!fits(fn(c.fn), c.block)) { row(M, o, c.id, "registers", nullptr, 0); return; }
  Ready r; if (!prepare(M, o, c, r)) { row(M, o, c.id, "padding", nullptr, 0); return; }
  running = c.fn; CK(cuMemsetD8Async(C.d, 0xff, o.result * size_of(o.dtype), stream)); if (r.through) CK(cuMemsetD8Async(wide.d, 0xff, o.result * 4, stream));
  run_once(o, r); const float err = worst(C.d, o, o.dtype == "f64" ? 1e-10f : 1e-2f); const bool ok = err < c.tolerance;
  if (check_only) keep_result(M, o, c);
  if (!ok) { const bool fresh = check_only && bad.insert(c.fn).second; ++rows_wrong; fprintf(stderr, "WRONG %s %s %s %s id %s: %g\n", M.task.name.c_str(), o.text.c_str(), o.dtype.c_str(), c.fn.c_str(), c.id.c_str(), err);
    if (fresh) { FILE* f = fopen((out_dir + "/bad.txt").c_str(), "a"); if (f) { fprintf(f, "%s\n", c.fn.c_str()); fclose(f); } } }
  if (check_only || !ok) { row(M, o, c.id, ok ? "ok" : "wrong", nullptr, err); running.clear(); return; }
  double ns[3]; timed([&] { run_once(o, r); }, ns, o.best); running.clear();
  o.best = std::min(o.best, std::min({ns[0], ns[1], ns[2]})); row(M, o, c.id, "ok", ns, err);
}

#ifdef WITH_CUSPARSE
static cusparseHandle_t handle;
// one algorithm: buffer size, preparation (not timed), operation
template<class S, class P, class F> static void library(Matrix& M, Operation& o, const char* id, bool comparable, S&& size, P&& ready, F&& once) {
  size_t bytes = 0; if (size(&bytes) != CUSPARSE_STATUS_SUCCESS) { row(M, o, id, "unsupported", nullptr, 0); return; }
  static Buffer buffer; buffer.need(bytes); running = id; ready((void*)buffer.d); cusparseStatus_t s = once((void*)buffer.d); double ns[3]; float err = 0;
  if (s == CUSPARSE_STATUS_SUCCESS) { CK(cuStreamSynchronize(stream)); if (comparable) err = worst(C.d, o, o.dtype == "f64" ? 1e-10f : 1e-2f); timed([&] { once((void*)buffer.d); }, ns, 1e30); row(M, o, id, err < 3e-2 ? "ok" : "wrong", ns, err); }
  else row(M, o, id, "unsupported", nullptr, 0);
  running.clear();
}
static void libraries(Matrix& M, Operation& o) {
  Csr& a = M.a; const cusparseOperation_t N = CUSPARSE_OPERATION_NON_TRANSPOSE, T = CUSPARSE_OPERATION_TRANSPOSE;
  const cudaDataType t = o.dtype == "f64" ? CUDA_R_64F : o.dtype == "f32" ? CUDA_R_32F : o.dtype == "f16" ? CUDA_R_16F : CUDA_R_16BF, ct = o.dtype == "f64" ? CUDA_R_64F : CUDA_R_32F;
  const float one_f = 1, nil_f = 0; const double one_d = 1, nil_d = 0; const void *one = o.dtype == "f64" ? (const void*)&one_d : &one_f, *nil = o.dtype == "f64" ? (const void*)&nil_d : &nil_f;
  cusparseSpMatDescr_t A; const bool sddmm = o.kind == "sddmm";
  cusparseCreateCsr(&A, a.m, a.n, a.nnz, (void*)M.ptr, (void*)M.idx, sddmm ? (void*)C.d : (void*)M.val(o.dtype), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, t);
  if (o.kind == "spmv") {
    cusparseDnVecDescr_t b, c; cusparseCreateDnVec(&b, a.n, (void*)B.d, t); cusparseCreateDnVec(&c, a.m, (void*)C.d, t);
    const std::pair<const char*, cusparseSpMVAlg_t> algs[] = {{"cusparse-csr1", CUSPARSE_SPMV_CSR_ALG1}, {"cusparse-csr2", CUSPARSE_SPMV_CSR_ALG2}};
    for (auto& l : algs) library(M, o, l.first, true, [&](size_t* n) { return cusparseSpMV_bufferSize(handle, N, one, A, b, nil, c, ct, l.second, n); },
      [&](void* w) { return cusparseSpMV_preprocess(handle, N, one, A, b, nil, c, ct, l.second, w); }, [&](void* w) { return cusparseSpMV(handle, N, one, A, b, nil, c, ct, l.second, w); });
    cusparseDestroyDnVec(b); cusparseDestroyDnVec(c);
  } else {
    cusparseDnMatDescr_t b, c; cusparseCreateDnMat(&b, a.n, o.K, o.K, (void*)B.d, t, CUSPARSE_ORDER_ROW); cusparseCreateDnMat(&c, a.m, o.K, o.K, sddmm ? (void*)X.d : (void*)C.d, t, CUSPARSE_ORDER_ROW);
    const std::pair<const char*, cusparseSpMMAlg_t> algs[] = {{"cusparse-csr2", CUSPARSE_SPMM_CSR_ALG2}, {"cusparse-csr3", CUSPARSE_SPMM_CSR_ALG3}, {"cusparse-default", CUSPARSE_SPMM_ALG_DEFAULT}};
    if (!sddmm) for (auto& l : algs) library(M, o, l.first, true, [&](size_t* n) { return cusparseSpMM_bufferSize(handle, N, N, one, A, b, nil, c, ct, l.second, n); },
      [&](void* w) { return cusparseSpMM_preprocess(handle, N, N, one, A, b, nil, c, ct, l.second, w); }, [&](void* w) { return cusparseSpMM(handle, N, N, one, A, b, nil, c, ct, l.second, w); });
    else library(M, o, "cusparse-default", false /* without the product by A's values */, [&](size_t* n) { return cusparseSDDMM_bufferSize(handle, N, T, one, c, b, nil, A, ct, CUSPARSE_SDDMM_ALG_DEFAULT, n); },
      [&](void* w) { return cusparseSDDMM_preprocess(handle, N, T, one, c, b, nil, A, ct, CUSPARSE_SDDMM_ALG_DEFAULT, w); }, [&](void* w) { return cusparseSDDMM(handle, N, T, one, c, b, nil, A, ct, CUSPARSE_SDDMM_ALG_DEFAULT, w); });
    cusparseDestroyDnMat(b); cusparseDestroyDnMat(c);
  }
  cusparseDestroySpMat(A);
}
#else
static void libraries(Matrix&, Operation&) {}
#endif

// Median of 5 times of 10 launches between events, in ns per launch; in a CUDA graph or in the stream.
template<class F> static double ns_of(F&& once, bool in_graph) {
  CUgraph g; CUgraphExec x; auto ten = [&] { for (int i = 0; i < 10; ++i) once(); };
  if (in_graph) { CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); ten(); CK(cuStreamEndCapture(stream, &g)); CK(cuGraphInstantiate(&x, g, 0)); }
  double ns[6];
  for (auto& t : ns) { CK(cuEventRecord(e0, stream)); if (in_graph) CK(cuGraphLaunch(x, stream)); else ten(); CK(cuEventRecord(e1, stream)); CK(cuStreamSynchronize(stream)); t = elapsed_ns() / 10; }
  if (in_graph) { cuGraphExecDestroy(x); cuGraphDestroy(g); }
  std::sort(ns + 1, ns + 6); return ns[3];
}
// Bandwidths in GB/s (a copy: bytes read and bytes written) by size, by cuMemcpy, cuMemset and kernels of the project's own.
static void bandwidths(FILE* f) {
  for (const size_t mb : {16, 64, 256, 1024, 4096}) {
    const size_t bytes = mb << 20; B.need(bytes); C.need(bytes); Args g; memset(&g, 0, sizeof g); put(g.X, B.d); put(g.out, C.d); g.count = (long long)(bytes / 16);
    auto line = [&](const char* what, double factor, double ns) { fprintf(f, "%s_%zu_mib_gb_s %.0f\n", what, mb, factor * bytes / ns); };
    auto memcpy_ = [&] { CK(cuMemcpyDtoDAsync(C.d, B.d, bytes, stream)); }; auto memset_ = [&] { CK(cuMemsetD32Async(C.d, 1, bytes / 4, stream)); };
    memset_(); CK(cuMemsetD32Async(B.d, 1, bytes / 4, stream));
    line("copy_by_memcpy_in_graph", 2, ns_of(memcpy_, true)); line("copy_by_memcpy_in_stream", 2, ns_of(memcpy_, false)); line("write_by_memset", 1, ns_of(memset_, false));
    for (const int blocks : {4, 8, 16, 0}) {  // blocks per multiprocessor; 0: a thread per 64 bytes
      const unsigned grid = blocks ? 132u * blocks : (unsigned)((g.count + 1023) / 1024); const string suffix = blocks ? "_" + std::to_string(blocks) + "_blocks" : "_grid";
      line(("copy_by_kernel" + suffix).c_str(), 2, ns_of([&] { launch(fn("tool_copy"), g, grid, 256); }, false)); line(("read_by_kernel" + suffix).c_str(), 1, ns_of([&] { launch(fn("tool_read"), g, grid, 256); }, false));
    }
  }
}
// How often a kernel in `stream` sees old values after cuMemcpyHtoD (default stream) and after to_device.
static void stale_copies(FILE* f) {
  for (const int words : {1 << 15, 1 << 18, 1 << 20}) for (const bool ordered : {false, true}) {
    vector<float> v(words), back(words); stage.need(words * 4); wide.need(words * 4); int stale = 0; const int trials = 300;
    for (int k = 0; k < trials; ++k) {
      std::fill(v.begin(), v.end(), (float)k); Args g; memset(&g, 0, sizeof g); put(g.X, stage.d); put(g.out, wide.d); g.count = words;
      if (ordered) to_device(stage.d, v.data(), words * 4); else CK(cuMemcpyHtoD(stage.d, v.data(), words * 4));
      launch(fn("cast_f32"), g, 1024, 256); CK(cuStreamSynchronize(stream)); CK(cuMemcpyDtoH(back.data(), wide.d, words * 4));
      for (float x : back) if (x != (float)k) { ++stale; break; }
    }
    fprintf(f, "stale_of_%d_%s_%d_words %d\n", trials, ordered ? "in_order" : "default_stream", words, stale);
  }
}

// Bandwidths, launch latency, throughput of atomics: lines "name value" in OUT/facts.txt
static void facts() {
  FILE* f = fopen((out_dir + "/facts.txt").c_str(), "w"); double ns[3];
  bandwidths(f); stale_copies(f);
  Args g; memset(&g, 0, sizeof g); auto empty = [&] { launch(fn("tool_nothing"), g, 1, 32); }; empty(); CK(cuStreamSynchronize(stream));
  double t = now(); for (int i = 0; i < 10000; ++i) empty(); const double issue = (now() - t) * 1e5; CK(cuStreamSynchronize(stream)); fprintf(f, "launch_in_stream_us %.3f\nlaunch_call_us %.3f\n", (now() - t) * 1e2, issue / 1e3);
  t = now(); for (int i = 0; i < 2000; ++i) { empty(); CK(cuStreamSynchronize(stream)); } fprintf(f, "launch_and_wait_us %.3f\n", (now() - t) * 500);
  CUgraph gr; CUgraphExec x; CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); for (int i = 0; i < 1000; ++i) empty(); CK(cuStreamEndCapture(stream, &gr)); CK(cuGraphInstantiate(&x, gr, 0)); CK(cuGraphLaunch(x, stream));
  CK(cuEventRecord(e0, stream)); CK(cuGraphLaunch(x, stream)); CK(cuEventRecord(e1, stream)); CK(cuStreamSynchronize(stream)); fprintf(f, "launch_in_graph_us %.3f\n", elapsed_ns() / 1e6);
  for (int words : {1, 32, 1024, 1 << 20, 1 << 26}) { g.n = words; g.count = words < 1024 ? 1 << 20 : 1 << 26; put(g.out, B.d); auto add = [&] { launch(fn("tool_atomics"), g, 132 * 16, 256); }; add(); timed(add, ns, 1e30); std::sort(ns, ns + 3); fprintf(f, "atomic_add_f32_over_%d_words_g_s %.3f\n", words, g.count / ns[1]); }
  fclose(f);
}

int main(int argc, char** argv) {
  if (argc < 5) { fprintf(stderr, "usage: driver KERNELS PLAN OUT SECONDS [FIRST_MATRIX]\n"); return 2; }
  const string dir = argv[1]; out_dir = argv[3]; const double limit = atof(argv[4]), t0 = now(); const size_t first = argc > 5 ? (size_t)atol(argv[5]) : 0;
  CK(cuInit(0)); CUdevice dev; CUcontext context; CK(cuDeviceGet(&dev, 0)); CK(cuDevicePrimaryCtxRetain(&context, dev)); CK(cuCtxSetCurrent(context));
  char device[128]; cuDeviceGetName(device, 128, dev);
  { std::ifstream names(dir + "/names.txt"); string file, name; std::map<string, CUmodule> mods; while (names >> file >> name) { if (!mods.count(file)) CK(cuModuleLoad(&mods[file], (dir + "/" + file).c_str())); CK(cuModuleGetFunction(&functions[name], mods[file], name.c_str())); } }
  { std::ifstream f(out_dir + "/bad.txt"); string name; while (f >> name) bad.insert(name); }
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); CK(cuEventCreate(&e0, 0)); CK(cuEventCreate(&e1, 0)); CK(cuMemAlloc(&worst_d, 4));
#ifdef WITH_CUSPARSE
  if (cusparseCreate(&handle) != CUSPARSE_STATUS_SUCCESS) { fprintf(stderr, "cuSPARSE does not start\n"); return 5; }
  cusparseSetStream(handle, (cudaStream_t)stream);
#endif
  fprintf(stderr, "%s: %zu kernels in %.1f s\n", device, functions.size(), now() - t0);
  if (string(argv[2]) == "facts") { facts(); return 0; }
  vector<Task> tasks = read_plan(argv[2]); rows_file = fopen((out_dir + "/rows.csv").c_str(), "a");
  if (!rows_file) { fprintf(stderr, "cannot write to %s\n", out_dir.c_str()); return 2; }
  size_t at = first;
  { const unsigned cores = std::max(1u, std::thread::hardware_concurrency()); Prefetch prefetch(tasks, first, cores > 4 ? cores - 3 : 1);
    for (; at < tasks.size() && now() - t0 < limit; ++at) {
      { FILE* f = fopen((out_dir + "/at.txt").c_str(), "w"); if (f) { fprintf(f, "%zu\n", at); fclose(f); } }
      Task& task = prefetch.wait(at); Matrix M(task); Operation o;
      for (auto& s : task.steps) {
        if (now() - t0 > limit) break;
        if (s.tag == 'O') { o = Operation(); o.kind = s.kind; o.dtype = s.dtype; o.K = s.K; o.text = s.kind + (s.kind == "spmv" ? "" : ":" + std::to_string(s.K)); open_operation(M, o); }
        else if (o.wrong) continue;
        else if (s.tag == 'L') libraries(M, o);
        else measure(M, o, s.c);
      }
      fflush(rows_file); prefetch.drop(at);
    } }
  fclose(rows_file);
  fprintf(stderr, "%zu of %zu matrices, %d rows, %d wrong, %.1f s\n", at, tasks.size(), rows_done, rows_wrong, now() - t0);
  return 0;
}
