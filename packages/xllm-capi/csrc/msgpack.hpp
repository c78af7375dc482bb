// The part of msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md) that the engine protocol uses.
// The decoder trusts nothing: every length is checked against the bytes that are left. Knows nothing of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace libxllm {

// Appends values to a byte string, each in its shortest form.
class Encoder {
public:
    explicit Encoder(std::string &out) : out_(out) {}
    void nil() { byte(0xc0); }
    void boolean(bool value) { byte(value ? 0xc3 : 0xc2); }
    void integer(std::int64_t value);
    void real(double value);
    void string(std::string_view value);
    void string_or_nil(const char *value) { value == nullptr ? nil() : string(value); }
    void binary(std::string_view value);
    void array(std::size_t size);
    void map(std::size_t size);

private:
    void byte(unsigned value) { out_.push_back(static_cast<char>(value)); }
    void big_endian(std::uint64_t value, int num_bytes);

    std::string &out_;
};

// The bytes are not what the reader asked for, or end too early.
class MalformedMessage : public std::exception {
public:
    const char *what() const noexcept override { return "The engine sent a message that cannot be read."; }
};

// Reads values one after another from bytes that outlive it. All methods throw MalformedMessage.
class Decoder {
public:
    explicit Decoder(std::string_view bytes) : rest_(bytes) {}
    bool at_end() const { return rest_.empty(); }
    // Consume a nil if it is next, and say whether it was.
    bool nil();
    bool boolean();
    std::int64_t integer();
    // Also reads integers.
    double real();
    // Points into the bytes.
    std::string_view string();
    // Points into the bytes, too.
    std::string_view binary();
    // The number of elements that follow; never more than the bytes left.
    std::size_t array();
    // The number of key and value pairs that follow.
    std::size_t map();
    // Step over one value of any type, nested ones included.
    void skip();

private:
    unsigned peek() const;
    unsigned byte();
    std::uint64_t big_endian(int num_bytes);
    std::string_view take(std::uint64_t num_bytes);
    std::size_t container(unsigned fixed_mask, unsigned fixed_tag, unsigned tag16, std::size_t min_bytes);
    std::uint64_t skip_one();

    std::string_view rest_;
};

// Whether `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

}  // namespace libxllm
