// Packed weights in a file, so that a later start reads them instead of repacking. Read, not mapped: memory of our own
// lies on huge pages, which decoding gains more from than a start would from a mapping.
//
//   magic, key length, key | for each target: format, has_minimum, group_inputs, number of bytes | the data of all
//   targets one after the other. All in this machine's byte order; the layout of tiles is the same for all CPUs.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "weights.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {
namespace {

constexpr char kMagic[] = "xLLM packed weights 2\n";  // the number changes with the layout of tiles, of this file or of what is derived
constexpr int64_t kPieceBytes = int64_t{4} << 20;

struct Record {
  uint8_t format;
  uint8_t has_minimum;
  uint8_t group_inputs;
  uint8_t is_vector;
  uint32_t unused;
  int64_t num_bytes;
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

[[noreturn]] void fail(const std::string& path) {
  throw std::runtime_error(path + " cannot be written: " + std::strerror(errno));
}

void write(std::FILE* file, const void* data, size_t num_bytes, const std::string& path) {
  if (num_bytes > 0 && std::fwrite(data, 1, num_bytes, file) != num_bytes) fail(path);
}

bool read(std::FILE* file, void* data, size_t num_bytes) { return std::fread(data, 1, num_bytes, file) == num_bytes; }

std::string header(const std::string& key) {
  const uint64_t size = key.size();
  std::string text(kMagic, sizeof kMagic);
  text.append(reinterpret_cast<const char*>(&size), sizeof size);
  return text + key;
}

// Reads [offset, offset + num_bytes) of a file in pieces on the pool, each with a stream of its own.
bool read_data(const std::string& path, int64_t offset, int64_t num_bytes, uint8_t* out) {
  struct Context {
    const std::string& path;
    int64_t offset, num_bytes;
    uint8_t* out;
    std::atomic<bool> has_failed{false};
  } context{path, offset, num_bytes, out};
  cpu::parallel_for(
      (num_bytes + kPieceBytes - 1) / kPieceBytes, 4,
      [](void* pointer, int64_t begin, int64_t end) {
        Context& self = *static_cast<Context*>(pointer);
        const int64_t first = begin * kPieceBytes;
        const int64_t count = std::min(end * kPieceBytes, self.num_bytes) - first;
        const File file(std::fopen(self.path.c_str(), "rb"));
        if (file == nullptr || std::setvbuf(file.get(), nullptr, _IONBF, 0) != 0 ||
            fseeko(file.get(), self.offset + first, SEEK_SET) != 0 ||
            !read(file.get(), self.out + first, static_cast<size_t>(count)))
          self.has_failed = true;
      },
      &context);
  return !context.has_failed;
}

cpu::PackedMatrix matrix_of(const Record& record, const std::vector<int64_t>& shape) {
  cpu::PackedMatrix matrix{};
  matrix.num_outputs = shape[0];
  matrix.num_inputs = shape[1];
  matrix.format = static_cast<cpu::PackedFormat>(record.format);
  matrix.has_minimum = record.has_minimum != 0;
  matrix.group_inputs = record.group_inputs;
  return matrix;
}

int64_t matrix_bytes(const cpu::PackedMatrix& matrix) { return cpu::num_tiles(matrix) * cpu::tile_bytes(matrix); }

int64_t vector_bytes(const std::vector<int64_t>& shape) {
  return cpu::round_up(shape[0], cpu::kTileOutputs) * static_cast<int64_t>(sizeof(float));
}

bool is_valid(const Record& record, bool is_vector, const std::vector<int64_t>& shape) {
  if (record.is_vector != static_cast<uint8_t>(is_vector)) return false;
  if (is_vector) return record.num_bytes == vector_bytes(shape);
  const bool is_known = record.format <= 4 && (record.group_inputs == 16 || record.group_inputs == 32) &&
                        (record.format != 4 || record.group_inputs == 32);
  return is_known && record.num_bytes == matrix_bytes(matrix_of(record, shape));
}

}  // namespace

void Weights::save(const std::string& path, const std::string& key) const {
  if (!is_finished_) throw std::invalid_argument("finish must come before save_packed");
  const File file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) fail(path);
  const std::string text = header(key);
  write(file.get(), text.data(), text.size(), path);
  for (const std::string& name : names_) {
    const Target& target = targets_.at(name);
    Record record{};
    record.is_vector = target.vector != nullptr;
    record.num_bytes = vector_bytes(target.shape);
    if (target.vector == nullptr) {
      const cpu::PackedMatrix& matrix = target.linear->matrix;
      record.format = static_cast<uint8_t>(matrix.format);
      record.has_minimum = matrix.has_minimum;
      record.group_inputs = matrix.group_inputs;
      record.num_bytes = matrix_bytes(matrix);
    }
    write(file.get(), &record, sizeof record, path);
  }
  for (const std::string& name : names_) {
    const Target& target = targets_.at(name);
    if (target.vector != nullptr) write(file.get(), *target.vector, static_cast<size_t>(vector_bytes(target.shape)), path);
    else write(file.get(), target.linear->matrix.tiles, static_cast<size_t>(matrix_bytes(target.linear->matrix)), path);
  }
  if (std::fflush(file.get()) != 0) fail(path);
}

bool Weights::load(const std::string& path, const std::string& key) {
  if (is_finished_ || arena_.num_bytes() > 0) throw std::invalid_argument("load_packed must come before set_weight");
  const std::string expected = header(key);
  std::string found(expected.size(), '\0');
  std::vector<Record> records(names_.size());
  int64_t total = 0;
  {
    const File file(std::fopen(path.c_str(), "rb"));
    if (file == nullptr || !read(file.get(), found.data(), found.size()) || found != expected ||
        !read(file.get(), records.data(), records.size() * sizeof(Record)))
      return false;
    for (size_t i = 0; i < records.size(); ++i) {
      const Target& target = targets_.at(names_[i]);
      if (!is_valid(records[i], target.vector != nullptr, target.shape)) return false;
      total += records[i].num_bytes;
    }
    const int64_t end = static_cast<int64_t>(found.size() + records.size() * sizeof(Record)) + total;
    if (fseeko(file.get(), 0, SEEK_END) != 0 || ftello(file.get()) != end) return false;
  }
  Arena arena;
  uint8_t* data = arena.allocate(static_cast<size_t>(total));
  if (!read_data(path, static_cast<int64_t>(found.size() + records.size() * sizeof(Record)), total, data)) return false;
  arena_ = std::move(arena);
  for (size_t i = 0; i < records.size(); ++i) {
    Target& target = targets_.at(names_[i]);
    if (target.vector != nullptr) {
      *target.vector = reinterpret_cast<float*>(data);
    } else {
      target.linear->matrix = matrix_of(records[i], target.shape);
      target.linear->matrix.tiles = data;
    }
    target.is_filled = true;
    data += records[i].num_bytes;
  }
  finish();
  return true;
}

}  // namespace xllm::kernels::native
