/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a model and its weights through its own functions, and writes an ETDump, model.etdp. C99: loaders
 * model.pte weights.ptd */
#include <stdio.h>

#include "torchette/extension/c_api.h"

static torchette_error_t read_file(void* file, size_t offset, size_t size, void* to) {
  if (fseek(file, (long)offset, SEEK_SET) != 0 || fread(to, 1, size, file) != size) return 1;
  return TORCHETTE_OK;
}

static void close_file(void* file) { fclose(file); }

static torchette_loader_t open_file(const char* path) {
  torchette_loader_t loader = {NULL, 0, read_file, close_file};
  FILE* file = fopen(path, "rb");
  if (file == NULL) return loader;
  fseek(file, 0, SEEK_END);
  loader.context = file;
  loader.size = (size_t)ftell(file);
  return loader;
}

static int fail(void) {
  fprintf(stderr, "%s\n", torchette_last_error());
  return 1;
}

int main(int argc, char** argv) {
  torchette_module_t* module;
  torchette_loader_t program, weights;
  const void* dump;
  size_t size;
  FILE* out;

  if (argc < 3) return 2;
  torchette_set_log(NULL); /* nothing to standard error */
  program = open_file(argv[1]);
  weights = open_file(argv[2]);
  if (program.context == NULL || weights.context == NULL) return 2;
  if (torchette_module_open_loader(&program, &module) != TORCHETTE_OK) return fail();
  if (torchette_module_add_data_loader(module, &weights) != TORCHETTE_OK) return fail();
  if (torchette_module_trace(module, NULL, 0) != TORCHETTE_OK) return fail();
  if (torchette_method_load(module, "forward") != TORCHETTE_OK) return fail();
  if (torchette_module_etdump(module, &dump, &size) != TORCHETTE_OK) return fail();
  out = fopen("model.etdp", "wb");
  if (out == NULL || fwrite(dump, 1, size, out) != size || fclose(out) != 0) return 1;
  torchette_module_free(module);
  return 0;
}
