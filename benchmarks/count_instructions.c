// SPDX-License-Identifier: BSD-3-Clause
// A plugin of qemu: prints how many instructions a program has executed, when it ends. What it needs of qemu's
// interface stands here, since no package has the header.
#include <stdint.h>
#include <stdio.h>

typedef uint64_t Id;
typedef struct Block Block;
int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(Id id, void (*translated)(Id id, Block* block));
size_t qemu_plugin_tb_n_insns(const Block* block);
void qemu_plugin_register_vcpu_tb_exec_inline(Block* block, int add, void* to, uint64_t number);
void qemu_plugin_register_atexit_cb(Id id, void (*ended)(Id id, void* data), void* data);

static uint64_t count;

static void translated(Id id, Block* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &count, qemu_plugin_tb_n_insns(block));
}

static void ended(Id id, void* data) {
  (void)id, (void)data;
  fprintf(stderr, "instructions %llu\n", (unsigned long long)count);
}

int qemu_plugin_install(Id id, const void* info, int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, 0);
  return 0;
}
