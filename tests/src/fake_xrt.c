/* A library with the part of XRT's C API that the runtime calls, for tests. It checks the calls, and has the array simulated by the test that loads it:
 *
 *   -DFOLDER="…"   calls are appended to its file `calls`, loaded XCLBINs are its files `0.xclbin`, …
 *
 * A run writes its instruction stream and buffers to files of the folder and waits for the simulator's answer, a file with the outputs. The file `next` has the state in which the next run ends, or the word `hang`.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARGUMENTS = 6, FIRST_BUFFER = 3 };

struct bo { struct bo *parent; unsigned char *bytes; size_t size; uint64_t flags; unsigned group; unsigned char *device; };
struct kernel { unsigned char uuid[16]; };
struct run { struct kernel *kernel; uint64_t opcode; uint32_t words; struct bo *buffers[ARGUMENTS]; unsigned set; int started; };

static int open_devices, loaded;
static unsigned char uuids[64][16];

static FILE *file(const char *name, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, FOLDER "/%s", name);
  return fopen(path, mode);
}

static void called(const char *name) {
  FILE *calls = file("calls", "a");
  if (calls) { fprintf(calls, "%s\n", name); fclose(calls); }
}

static void put(const char *name, const void *bytes, size_t size) {
  FILE *to = file(name, "wb");
  fwrite(bytes, 1, size, to);
  fclose(to);
}

static int refuse(int code) { errno = code; return -1; }

void *xrtDeviceOpen(unsigned index) {
  called("xrtDeviceOpen");
  if (index != 0) { errno = ENODEV; return NULL; }
  open_devices++;
  return &open_devices;
}

int xrtDeviceClose(void *device) { called("xrtDeviceClose"); open_devices--; return device == &open_devices ? 0 : refuse(EINVAL); }

int xrtDeviceLoadXclbin(void *device, const void *xclbin) {
  const unsigned char *head = xclbin;
  uint64_t size;
  char name[32];
  called("xrtDeviceLoadXclbin");
  if (device != &open_devices || memcmp(head, "xclbin2", 8)) return refuse(EINVAL);
  memcpy(&size, head + 0x130, 8);
  memcpy(uuids[loaded], head + 0x1a0, 16);
  snprintf(name, sizeof name, "%d.xclbin", loaded++);
  put(name, xclbin, size);
  return 0;
}

void *xrtPLKernelOpen(void *device, const unsigned char *uuid, const char *name) {
  called("xrtPLKernelOpen");
  for (int at = 0; at < loaded; at++)
    if (device == &open_devices && !memcmp(uuids[at], uuid, 16) && !strcmp(name, "MLIR_AIE")) {
      struct kernel *kernel = calloc(1, sizeof *kernel);
      memcpy(kernel->uuid, uuid, 16);
      return kernel;
    }
  errno = ENOENT;
  return NULL;
}

int xrtKernelClose(void *kernel) { called("xrtKernelClose"); free(kernel); return 0; }

void *xrtBOAlloc(void *device, size_t size, uint64_t flags, unsigned group) {
  called("xrtBOAlloc");
  /* Instructions are in the heap, memory 1; buffers in that of the host, memory 0. */
  if (device != &open_devices || !((flags == 1u << 24 && group == 1) || (flags == 1u << 29 && group == 0))) { errno = EINVAL; return NULL; }
  struct bo *bo = calloc(1, sizeof *bo);
  bo->bytes = calloc(1, size);
  bo->device = calloc(1, size);
  bo->size = size, bo->flags = flags, bo->group = group;
  return bo;
}

void *xrtBOSubAlloc(void *parent, size_t size, size_t offset) {
  struct bo *of = parent, *bo;
  called("xrtBOSubAlloc");
  if (offset % 4 || offset + size > of->size) { errno = EINVAL; return NULL; }
  bo = calloc(1, sizeof *bo);
  bo->parent = of, bo->bytes = of->bytes + offset, bo->device = of->device + offset, bo->size = size, bo->group = of->group;
  return bo;
}

int xrtBOFree(void *handle) {
  struct bo *bo = handle;
  called("xrtBOFree");
  if (!bo->parent) { free(bo->bytes); free(bo->device); }
  free(bo);
  return 0;
}

void *xrtBOMap(void *handle) { return ((struct bo *)handle)->bytes; }

int xrtBOSync(void *handle, int direction, size_t size, size_t offset) {
  struct bo *bo = handle;
  called("xrtBOSync");
  if (offset + size > bo->size) return refuse(EINVAL);
  if (direction == 0) memcpy(bo->device + offset, bo->bytes + offset, size);
  else memcpy(bo->bytes + offset, bo->device + offset, size);
  return 0;
}

void *xrtRunOpen(void *kernel) {
  struct run *run = calloc(1, sizeof *run);
  called("xrtRunOpen");
  run->kernel = kernel;
  return run;
}

int xrtRunSetArg(void *handle, int index, ...) {
  struct run *run = handle;
  va_list more;
  called("xrtRunSetArg");
  if (index < 0 || index >= ARGUMENTS) return refuse(EINVAL);
  va_start(more, index);
  if (index == 0) run->opcode = va_arg(more, uint64_t);
  else if (index == 2) run->words = va_arg(more, uint32_t);
  else run->buffers[index] = va_arg(more, struct bo *);
  va_end(more);
  run->set |= 1u << index;
  return 0;
}

int xrtRunStart(void *handle) {
  struct run *run = handle;
  called("xrtRunStart");
  if (run->set != (1u << ARGUMENTS) - 1 || run->opcode != 3 || run->started) return refuse(EINVAL);
  if (run->buffers[1]->group != 1 || run->words * 4 > run->buffers[1]->size) return refuse(EINVAL);
  run->started = 1;
  return 0;
}

int xrtRunWaitFor(void *handle, unsigned milliseconds) {
  struct run *run = handle;
  char name[32], answer[16] = "";
  FILE *next = file("next", "r");
  called("xrtRunWaitFor");
  if (!run->started || milliseconds == 0) return 6;
  if (next) {
    if (!fgets(answer, sizeof answer, next)) answer[0] = 0;
    fclose(next);
    put("next", "", 0);
    if (!strcmp(answer, "hang")) return 3;
    if (answer[0]) return atoi(answer);
  }
  put("stream", run->buffers[1]->device, 4 * run->words);
  for (int index = FIRST_BUFFER; index < ARGUMENTS; index++) {
    snprintf(name, sizeof name, "buffer%d", index - FIRST_BUFFER);
    put(name, run->buffers[index]->device, run->buffers[index]->size);
  }
  put("request", "", 0);
  for (;;) {
    FILE *done = file("done", "rb");
    if (done) {
      struct bo *outputs = run->buffers[ARGUMENTS - 1];
      size_t got = fread(outputs->device, 1, outputs->size, done);
      fclose(done);
      unlink(FOLDER "/done");
      return got == outputs->size ? 4 : 5;
    }
    usleep(1000);
  }
}

int xrtRunClose(void *run) { called("xrtRunClose"); free(run); return 0; }
