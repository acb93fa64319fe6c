"""CUDA libraries without a GPU: ONNX Runtime's CUDA provider loads them, allocates on the host and launches nothing.

Which device it places nodes on, and which attention kernel it takes, is decided by the provider's own code before
anything is launched, so both are those of a machine with a GPU of the compute capability that `STUB_CAPABILITY` names
(`80`). Values are not: what a kernel should have written is whatever the memory held.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

# Offsets in `cudaDeviceProp` and numbers of attributes as in driver_types.h of CUDA 13.
_RUNTIME = r"""
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char one;
static int capturing;
static int capability(void) { const char *said = getenv("STUB_CAPABILITY"); return said ? atoi(said) : 80; }
static int allocated(void **at, size_t size) {
    *at = NULL;
    return posix_memalign(at, 4096, size ? size : 1) ? 2 : (memset(*at, 0, size), 0);
}
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceProperties(char *to, int device) {
    memset(to, 0, 1008);
    strcpy(to, "stub");
    *(size_t *)(to + 288) = 80ull << 30;             /* totalGlobalMem */
    *(size_t *)(to + 296) = 49152;                   /* sharedMemPerBlock */
    *(int *)(to + 304) = *(int *)(to + 632) = 65536; /* registers of a block, of a multiprocessor */
    *(int *)(to + 308) = 32;                         /* warpSize */
    *(int *)(to + 320) = 1024;                       /* maxThreadsPerBlock */
    for (int axis = 0; axis < 3; ++axis) { ((int *)(to + 324))[axis] = 1024; ((int *)(to + 336))[axis] = 65535; }
    *(int *)(to + 360) = capability() / 10;
    *(int *)(to + 364) = capability() % 10;
    *(int *)(to + 384) = 108;                        /* multiProcessorCount */
    *(int *)(to + 604) = 2048;                       /* maxThreadsPerMultiProcessor */
    *(size_t *)(to + 624) = 167936;                  /* sharedMemPerMultiprocessor */
    *(size_t *)(to + 672) = 166912;                  /* sharedMemPerBlockOptin */
    *(int *)(to + 688) = 32;                         /* maxBlocksPerMultiProcessor */
    return 0;
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? capability() / 10 : attribute == 76 ? capability() % 10
           : attribute == 16 ? 108 : attribute == 97 ? 166912 : 1024;
    return 0;
}
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cudaMalloc(void **at, size_t size) { return allocated(at, size); }
int cudaMallocHost(void **at, size_t size) { return allocated(at, size); }
int cudaHostAlloc(void **at, size_t size, unsigned flags) { return allocated(at, size); }
int cudaMallocFromPoolAsync(void **at, size_t size, void *pool, void *stream) { return allocated(at, size); }
int cudaFree(void *at) { free(at); return 0; }
int cudaFreeHost(void *at) { free(at); return 0; }
int cudaFreeAsync(void *at, void *stream) { free(at); return 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { memmove(to, from, size); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *s) { memmove(to, from, size); return 0; }
int cudaMemcpy2D(char *to, size_t wide, const char *from, size_t narrow, size_t size, size_t rows, int kind) {
    if (getenv("STUB_TRACE")) fprintf(stderr, "copied %zu x %zu from %zu to %zu\n", rows, size, narrow, wide);
    for (size_t row = 0; row < rows; ++row) memmove(to + row * wide, from + row * narrow, size);
    return 0;
}
int cudaGraphLaunch(void *graph, void *stream) {
    if (getenv("STUB_TRACE")) fprintf(stderr, "launched\n");
    return 0;
}
int cudaMemset(void *to, int value, size_t size) { memset(to, value, size); return 0; }
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) { memset(to, value, size); return 0; }
int cudaMemGetInfo(size_t *left, size_t *all) { *left = *all = 80ull << 30; return 0; }
int cudaMemPoolGetAttribute(void *pool, int attribute, size_t *value) { *value = 0; return 0; }
int cudaPointerGetAttributes(int *to, const void *at) {
    memset(to, 0, 88); to[0] = 2; *(const void **)(to + 2) = at; return 0;
}
int cudaFuncGetAttributes(int *to, const void *function) { memset(to, 0, 144); return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *f, int n, size_t m, unsigned g) {
    *count = 1; return 0;
}
int cudaStreamIsCapturing(void *stream, int *status) { *status = capturing; return 0; }
int cudaStreamBeginCapture(void *stream, int mode) { capturing = 1; return 0; }
int cudaStreamEndCapture(void *stream, void **graph) { capturing = 0; *graph = &one; return 0; }
int cudaGraphInstantiate(void **made, void *graph, unsigned long long flags) { *made = &one; return 0; }
int cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = 1; return 0; }
int cudaLibraryLoadData(void **made) { *made = &one; return 0; }
int cudaLibraryGetKernel(void **made) { *made = &one; return 0; }
int __cudaGetKernel(void **made, const void *entry) { *made = &one; return 0; }
static int nothing(void) { return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned v, unsigned long long f, int *found) {
    *function = (void *)nothing; if (found) *found = 0; return 0;
}
void *__cudaRegisterFatBinary(void *binary) { static void *made = &one; return &made; }
int __cudaPopCallConfiguration(unsigned *grid, unsigned *block, size_t *shared, void **stream) {
    for (int axis = 0; axis < 3; ++axis) grid[axis] = block[axis] = 1;
    *shared = 0; *stream = NULL; return 0;
}
const char *cudaGetErrorName(int error) { return "stub"; }
const char *cudaGetErrorString(int error) { return "stub"; }
"""
_PRODUCTS = r"""
#include <stddef.h>
static char one;
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
const char *cublasGetStatusName(int status) { return "stub"; }
const char *cublasGetStatusString(int status) { return "stub"; }
int cublasLtMatmulAlgoGetHeuristic(
    void *h, void *o, void *a, void *b, void *c, void *d, void *p, int n, void *r, int *found
) {
    *found = 1; return 0;
}
"""


def build_stubs(provider: Path, folder: Path) -> None:
    """Build into `folder` every CUDA library that `provider` needs, with the symbols that it takes from each."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = _readelf("-d", provider)
    wanted: dict[str, set[str]] = {
        name: set() for name in re.findall(r"NEEDED.*\[(lib(?:cu|nv)[^\]]*\.so[^\]]*)\]", listed)
    }
    symbols = _readelf("--dyn-syms", provider)
    for name, library in re.findall(r" UND (\w+)@(lib\w+\.so[\d.]*)", symbols):
        if library in wanted:
            wanted[library].add(name)
    wanted["libcuda.so.1"] |= set(re.findall(r" UND (cu[A-Z]\w+)$", symbols, re.MULTILINE))
    for library, names in wanted.items():
        _build(folder / library, names)


def _build(library: Path, names: set[str]) -> None:
    source = _RUNTIME if "cudart" in library.name else _PRODUCTS
    made = set(re.findall(r"^[\w ]+?\**(\w+)\(", source, re.MULTILINE))
    plain = []
    for name in sorted(names - made):
        body = "*made = &one; return 0;" if "Create" in name else "return 0;"
        plain.append(f"long {name}(void **made) {{ {body} }}")
    script = library.with_suffix(".map")
    script.write_text(f"{library.name} {{ global: *; }};\n")
    flags = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}", f"-Wl,--version-script={script}"]
    subprocess.run(
        ["gcc", "-x", "c", "-", *flags, "-o", str(library)], input=source + "\n".join(plain), text=True, check=True
    )


def _readelf(option: str, path: Path) -> str:
    return subprocess.run(["readelf", option, "-W", str(path)], capture_output=True, text=True, check=True).stdout


def placements(log: str) -> dict[str, list[str]]:
    """The nodes that each execution provider got, out of ONNX Runtime's verbose log."""
    found: dict[str, list[str]] = defaultdict(list)
    provider = ""
    for line in log.splitlines():
        if (placed := re.search(r"placed on \[(\w+)ExecutionProvider\]", line)) is not None:
            provider = placed[1]
        elif provider and (node := re.search(r"\]\s+(\w+) \(", line)) is not None:
            found[provider].append(node[1])
    return dict(found)
