// The part of CUDA's driver interface that driver.cpp uses, on the CPU: memory is the host's, launches run at once
// through emulate.h, a graph is empty, and every event is ten microseconds after the one before.
#pragma once
#include <map>
#include <string>
#include "emulate.h"
typedef int CUresult, CUdevice, CUcontext, CUstream, CUmodule;
typedef uintptr_t CUdeviceptr;
typedef int* CUevent;
typedef int CUgraph, CUgraphExec;
typedef void (*CUfunction)(void**);
const CUresult CUDA_SUCCESS = 0;
enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_NON_BLOCKING, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK };
namespace emulated {
inline std::map<std::string, CUfunction>& kernels() { static std::map<std::string, CUfunction> k; return k; }
inline std::vector<std::pair<CUdeviceptr, std::string>> late;
struct Registered { Registered(const char* name, CUfunction f) { kernels()[name] = f; } };
}
#define KERNEL(name, ...) \
  static void name(void** p) { __VA_ARGS__(*(Args*)p[0]); } \
  static emulated::Registered registered_##name(#name, name);
inline CUresult cuInit(unsigned) { return 0; }
inline CUresult cuDeviceGet(CUdevice* d, int) { *d = 0; return 0; }
inline CUresult cuDeviceGetName(char* s, int n, CUdevice) { std::snprintf(s, (size_t)n, "CPU"); return 0; }
inline CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { *c = 0; return 0; }
inline CUresult cuCtxSetCurrent(CUcontext) { return 0; }
inline CUresult cuGetErrorString(CUresult, const char** s) { *s = "threads wait for one another"; return 0; }
inline CUresult cuModuleLoad(CUmodule* m, const char*) { *m = 0; return 0; }
inline CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) { *f = emulated::kernels()[name]; return *f ? 0 : 1; }
inline CUresult cuFuncGetAttribute(int* most, int, CUfunction) { *most = 1024; return 0; }
inline CUresult cuMemAlloc(CUdeviceptr* d, size_t n) { *d = (CUdeviceptr)std::malloc(n); return *d ? 0 : 2; }
inline CUresult cuMemFree(CUdeviceptr d) { std::free((void*)d); return 0; }
// As late as the interface allows: a copy in the default stream arrives with that stream's next synchronous copy back.
inline CUresult cuMemcpyHtoD(CUdeviceptr d, const void* s, size_t n) { emulated::late.push_back({d, std::string((const char*)s, n)}); return 0; }
inline CUresult cuMemcpyHtoDAsync(CUdeviceptr d, const void* s, size_t n, CUstream) { std::memcpy((void*)d, s, n); return 0; }
inline CUresult cuMemcpyDtoHAsync(void* d, CUdeviceptr s, size_t n, CUstream) { std::memcpy(d, (void*)s, n); return 0; }
inline CUresult cuMemcpyDtoH(void* d, CUdeviceptr s, size_t n) {
  for (auto& copy : emulated::late) std::memcpy((void*)copy.first, copy.second.data(), copy.second.size());
  emulated::late.clear(); std::memcpy(d, (void*)s, n); return 0;
}
inline CUresult cuMemcpyDtoDAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream) { std::memcpy((void*)d, (void*)s, n); return 0; }
inline CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char x, size_t n, CUstream) { std::memset((void*)d, x, n); return 0; }
inline CUresult cuMemsetD32Async(CUdeviceptr d, unsigned x, size_t n, CUstream) { for (size_t i = 0; i < n; ++i) ((unsigned*)d)[i] = x; return 0; }
inline CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned shared, CUstream, void** p, void**) {
  return emulated::launch([&] { f(p); }, gx, bx, shared);
}
inline CUresult cuStreamCreate(CUstream* s, unsigned) { *s = 0; return 0; }
inline CUresult cuStreamSynchronize(CUstream) { return 0; }
inline CUresult cuStreamBeginCapture(CUstream, int) { return 0; }
inline CUresult cuStreamEndCapture(CUstream, CUgraph* g) { *g = 0; return 0; }
inline CUresult cuGraphInstantiate(CUgraphExec* x, CUgraph, unsigned long long) { *x = 0; return 0; }
inline CUresult cuGraphLaunch(CUgraphExec, CUstream) { return 0; }
inline CUresult cuGraphExecDestroy(CUgraphExec) { return 0; }
inline CUresult cuGraphDestroy(CUgraph) { return 0; }
inline CUresult cuEventCreate(CUevent* e, unsigned) { *e = 0; return 0; }
inline CUresult cuEventRecord(CUevent, CUstream) { return 0; }
inline CUresult cuEventElapsedTime(float* ms, CUevent, CUevent) { *ms = 0.01f; return 0; }
