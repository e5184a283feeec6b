// SPDX-License-Identifier: BSD-3-Clause
// Mutates a program, a data file or a bundled program many times, and loads and executes each mutant. No
// mutant may crash. Built with AddressSanitizer and UndefinedBehaviorSanitizer. Arguments: the file, the
// number of mutants, the seed, the list of its fields written by fields.py, for mutations of fields, and a
// second, unchanged file: the program of a data file, or the data file of a program.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <vector>

#include "try_program.h"

namespace {

using Bytes = std::vector<uint8_t>;

/// A scalar of the file, an offset, a count or a vtable entry.
struct Field {
  size_t position;
  size_t width;
  char kind;  // o: an offset to `target`; n: other
  size_t target;
};

std::mt19937 generator;

size_t below(size_t n) { return static_cast<size_t>(generator() % n); }

constexpr uint64_t kBoundaryValues[] = {0,          1,          2,          3,         4,      16,
                                        0x7f,       0x80,       0xff,       0x7fff,    0xffff, 0x7fffffff,
                                        0x80000000, 0xffffffff, 0xfffffffe, UINT64_MAX};

/// Writes a boundary value, a value close to the old one, or the value of another field. An offset may get
/// the target of another offset.
void edit_field(Bytes& bytes, const std::vector<Field>& fields) {
  const Field& field = fields[below(fields.size())];
  if (field.position + field.width > bytes.size()) return;
  uint64_t value = 0;
  std::memcpy(&value, &bytes[field.position], field.width);
  const Field& other = fields[below(fields.size())];
  switch (below(5)) {
    case 0:
      value = kBoundaryValues[below(sizeof(kBoundaryValues) / sizeof(*kBoundaryValues))];
      break;
    case 1:
      value += 1 + below(8);
      break;
    case 2:
      value -= 1 + below(8);
      break;
    case 3:
      if (field.kind == 'o' && other.kind == 'o') {
        value = other.target - field.position;
      } else if (other.position + other.width <= bytes.size()) {
        std::memcpy(&value, &bytes[other.position], other.width < field.width ? other.width : field.width);
      }
      break;
    default:
      value = below(64);
  }
  std::memcpy(&bytes[field.position], &value, field.width);
}

void edit_bytes(Bytes& bytes) {
  const size_t at = below(bytes.size());
  switch (below(6)) {
    case 0:
      bytes[at] ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 1:
      bytes[at] = static_cast<uint8_t>(generator());
      break;
    case 2: {  // a boundary value, aligned like the scalars of the file
      const auto number =
          static_cast<uint32_t>(kBoundaryValues[below(sizeof(kBoundaryValues) / sizeof(*kBoundaryValues))]);
      if (at / 4 * 4 + 4 <= bytes.size()) std::memcpy(&bytes[at / 4 * 4], &number, 4);
      break;
    }
    case 3:  // a small value in place of an index, offset or size
      bytes[at / 4 * 4] = static_cast<uint8_t>(below(64));
      break;
    case 4: {  // a splice
      const size_t from = below(bytes.size()) / 4 * 4, to = at / 4 * 4, n = 4 * (1 + below(8));
      if (from + n <= bytes.size() && to + n <= bytes.size()) std::memmove(&bytes[to], &bytes[from], n);
      break;
    }
    default:
      if (below(4) == 0 && bytes.size() > 8) bytes.resize(below(bytes.size()) + 1);
  }
}

Bytes read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

/// Copies the bytes to a block of exactly their size, aligned like the bytes of a file.
constexpr std::align_val_t kAlignment{64};
uint8_t* copied(const Bytes& bytes) {
  auto* exact = static_cast<uint8_t*>(::operator new(bytes.size(), kAlignment));
  std::memcpy(exact, bytes.data(), bytes.size());
  return exact;
}

bool has_identifier(const Bytes& bytes, const char* identifier) {
  return bytes.size() >= 8 && std::memcmp(&bytes[4], identifier, 2) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  prepare();
  const Bytes bytes = read_file(argv[1]), other = argc > 5 ? read_file(argv[5]) : Bytes();
  torchette::extension::BufferDataLoader other_loader(other.data(), other.size());
  const auto other_map = torchette::extension::FlatTensorDataMap::load(&other_loader);
  const bool is_data = has_identifier(bytes, "FT"), is_bundle = has_identifier(bytes, "BP");
  const auto attempt = [&](const uint8_t* data, size_t size) {
    return is_data     ? try_data_file(data, size, other)
           : is_bundle ? try_bundle(data, size)
                       : try_program(data, size, other_map.ok() ? &*other_map : nullptr);
  };
  const long count = argc > 2 ? std::atol(argv[2]) : 1000;
  generator.seed(argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 0);
  std::vector<Field> fields;
  if (argc > 4) {
    std::ifstream list(argv[4]);
    for (Field field{}; list >> field.kind >> field.position >> field.width >> field.target;)
      fields.push_back(field);
  }
  uint8_t* exact = copied(bytes);
  const Outcome itself = attempt(exact, bytes.size());
  ::operator delete(exact, kAlignment);
  if (itself != Outcome::Ran) {
    std::fprintf(stderr, "the file itself does not run: %d\n", static_cast<int>(itself));
    return 1;
  }
  // A file for the current mutant: after a crash, it has the bytes that crashed.
  const char* mutant_path = std::getenv("TORCHETTE_LAST_MUTANT");
  long outcomes[4] = {};
  std::clock_t slowest = 0;
  for (long i = 0; i < count; ++i) {
    Bytes mutant = bytes;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      if (!fields.empty() && below(2) == 0) {
        edit_field(mutant, fields);
      } else {
        edit_bytes(mutant);
      }
    }
    exact = copied(mutant);
    if (mutant_path != nullptr)
      std::ofstream(mutant_path, std::ios::binary)
          .write(reinterpret_cast<char*>(exact), static_cast<std::streamsize>(mutant.size()));
    const std::clock_t start = std::clock();
    ++outcomes[static_cast<int>(attempt(exact, mutant.size()))];
    const std::clock_t elapsed = std::clock() - start;
    if (elapsed > slowest) slowest = elapsed;
    ::operator delete(exact, kAlignment);
  }
  std::printf("%ld not opened, %ld not loaded, %ld failed, %ld ran\nslowest: %.1f CPU ms\n", outcomes[0],
              outcomes[1], outcomes[2], outcomes[3], 1e3 * static_cast<double>(slowest) / CLOCKS_PER_SEC);
  return 0;
}
