// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/receipt.h"

#include <algorithm>
#include <cstring>

#include "torchette/runtime/platform.h"

namespace torchette::extension {
namespace {

// The primes of XXH64.
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                   kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

template <typename T>
T read_at(const uint8_t* bytes) {
  T value;
  memcpy(&value, bytes, sizeof(value));
  return value;
}

uint64_t rotate_left(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }
uint64_t mix(uint64_t lane, uint64_t word) { return rotate_left(lane + word * kPrime2, 31) * kPrime1; }

// The receipt: a magic string, the hash of the following bytes, two counts, the hashes, and text that the
// runtime does not read.
constexpr char kMagic[] = "RECEIPT1";
constexpr size_t kHashOffset = 8, kHashedOffset = 16, kPartsOffset = 24, kEntrySize = 16;
constexpr size_t kPieceSize = 1 << 20;  // of a data file

/// Hashes of consecutive parts.
struct Entries {
  const uint8_t* bytes;
  size_t count;

  uint64_t size(size_t index) const { return read_at<uint64_t>(bytes + index * kEntrySize); }
  uint64_t hash(size_t index) const { return read_at<uint64_t>(bytes + index * kEntrySize + 8); }
};

struct Receipt {
  Entries parts, data_files;
};

/// Returns the tables of a receipt. Error: InvalidProgram (the receipt is damaged).
Result<Receipt> parse(const FreeableBuffer& buffer) {
  const auto* bytes = static_cast<const uint8_t*>(buffer.data());
  const size_t size = buffer.size();
  if (size >= kPartsOffset && memcmp(bytes, kMagic, kHashOffset) == 0 &&
      read_at<uint64_t>(bytes + kHashOffset) == xxh64(bytes + kHashedOffset, size - kHashedOffset)) {
    const auto parts = read_at<uint32_t>(bytes + 16), files = read_at<uint32_t>(bytes + 20);
    if ((size - kPartsOffset) / kEntrySize >= uint64_t{parts} + files)
      return Receipt{{bytes + kPartsOffset, parts}, {bytes + kPartsOffset + parts * kEntrySize, files}};
  }
  TORCHETTE_LOG(Error, "the receipt is damaged");
  return Error::InvalidProgram;
}

Result<uint64_t> hash_of(const DataLoader& file, size_t offset, size_t size) {
  const Result<FreeableBuffer> bytes =
      file.load(offset, size, {DataLoader::SegmentInfo::Type::Constant, 0, nullptr});
  if (!bytes.ok()) return bytes.error();
  return xxh64(bytes->data(), size);
}

/// Returns the hash of a data file, which combines the hashes of its pieces.
Result<uint64_t> hash_of(const DataLoader& file, size_t size) {
  uint64_t hash = 0;
  for (size_t at = 0; at < size; at += kPieceSize) {
    const Result<uint64_t> piece = hash_of(file, at, std::min(kPieceSize, size - at));
    if (!piece.ok()) return piece.error();
    const uint64_t combined[] = {hash, *piece};
    hash = xxh64(combined, sizeof(combined));
  }
  return hash;
}

Error verify_parts(const Entries& parts, const DataLoader& file, size_t file_size, size_t receipt_size) {
  size_t at = 0;
  size_t i = 0;
  for (; i < parts.count && parts.size(i) <= file_size - at; ++i) {
    const auto size = static_cast<size_t>(parts.size(i));
    const Result<uint64_t> hash = hash_of(file, at, size);
    if (!hash.ok()) return hash.error();
    if (*hash != parts.hash(i)) {
      TORCHETTE_LOG(Error, "bytes %zu to %zu of the file differ from the receipt", at, at + size - 1);
      return Error::InvalidProgram;
    }
    at += size;
  }
  if (i == parts.count && at + receipt_size == file_size) return Error::Ok;
  TORCHETTE_LOG(Error, "the receipt does not match the file's size of %zu bytes", file_size);
  return Error::InvalidProgram;
}

Error verify_data_file(const Entries& entries, const DataLoader& file, size_t number) {
  const Result<size_t> size = file.size();
  if (!size.ok()) return size.error();
  const Result<uint64_t> hash = hash_of(file, *size);
  if (!hash.ok()) return hash.error();
  for (size_t i = 0; i < entries.count; ++i)
    if (entries.size(i) == *size && entries.hash(i) == *hash) return Error::Ok;
  TORCHETTE_LOG(Error, "data file %zu matches none of the %zu data files in the receipt", number,
                entries.count);
  return Error::InvalidExternalData;
}

}  // namespace

uint64_t xxh64(const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  size_t remaining = size;
  uint64_t hash = kPrime5;
  if (remaining >= 32) {
    uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
    for (; remaining >= 32; remaining -= 32, at += 32) {
      a = mix(a, read_at<uint64_t>(at));
      b = mix(b, read_at<uint64_t>(at + 8));
      c = mix(c, read_at<uint64_t>(at + 16));
      d = mix(d, read_at<uint64_t>(at + 24));
    }
    hash = rotate_left(a, 1) + rotate_left(b, 7) + rotate_left(c, 12) + rotate_left(d, 18);
    for (const uint64_t lane : {a, b, c, d}) hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  hash += size;
  for (; remaining >= 8; remaining -= 8, at += 8)
    hash = rotate_left(hash ^ mix(0, read_at<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (remaining >= 4) {
    hash = rotate_left(hash ^ read_at<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    remaining -= 4, at += 4;
  }
  for (; remaining != 0; --remaining, ++at) hash = rotate_left(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

Error verify_integrity(const Program& program, const DataLoader& file,
                       Span<const DataLoader* const> data_files) {
  const Result<FreeableBuffer> stored = program.get_data(kReceiptKey);
  if (!stored.ok()) {
    if (stored.error() == Error::NotFound) TORCHETTE_LOG(Error, "the program has no receipt");
    return stored.error();
  }
  const Result<Receipt> receipt = parse(*stored);
  if (!receipt.ok()) return receipt.error();
  const Result<size_t> size = file.size();
  if (!size.ok()) return size.error();
  TORCHETTE_TRY(verify_parts(receipt->parts, file, *size, stored->size()));
  for (size_t i = 0; i < data_files.size(); ++i)
    TORCHETTE_TRY(verify_data_file(receipt->data_files, *data_files[i], i));
  return Error::Ok;
}

}  // namespace torchette::extension
