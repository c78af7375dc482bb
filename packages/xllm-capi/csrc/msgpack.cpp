#include "msgpack.hpp"

#include <bit>
#include <limits>

namespace libxllm {

// ---- Encoder

void Encoder::big_endian(std::uint64_t value, int num_bytes) {
    for (int shift = 8 * (num_bytes - 1); shift >= 0; shift -= 8) byte(value >> shift & 0xff);
}

void Encoder::integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= -32 && value <= 127) {
        byte(bits & 0xff);
    } else if (value >= 0 && value <= std::numeric_limits<std::uint32_t>::max()) {
        byte(0xce);
        big_endian(bits, 4);
    } else if (value >= std::numeric_limits<std::int32_t>::min() && value < 0) {
        byte(0xd2);
        big_endian(bits, 4);
    } else {
        byte(0xd3);
        big_endian(bits, 8);
    }
}

void Encoder::real(double value) {
    byte(0xcb);
    big_endian(std::bit_cast<std::uint64_t>(value), 8);
}

void Encoder::string(std::string_view value) {
    if (value.size() < 32) {
        byte(0xa0 | value.size());
    } else {
        byte(0xdb);
        big_endian(value.size(), 4);
    }
    out_.append(value);
}

void Encoder::binary(std::string_view value) {
    byte(0xc6);
    big_endian(value.size(), 4);
    out_.append(value);
}

void Encoder::array(std::size_t size) {
    if (size < 16) {
        byte(0x90 | size);
    } else {
        byte(0xdd);
        big_endian(size, 4);
    }
}

void Encoder::map(std::size_t size) {
    if (size < 16) {
        byte(0x80 | size);
    } else {
        byte(0xdf);
        big_endian(size, 4);
    }
}

// ---- Decoder

unsigned Decoder::peek() const {
    if (rest_.empty()) throw MalformedMessage();
    return static_cast<unsigned char>(rest_.front());
}

unsigned Decoder::byte() {
    const unsigned value = peek();
    rest_.remove_prefix(1);
    return value;
}

std::string_view Decoder::take(std::uint64_t num_bytes) {
    if (num_bytes > rest_.size()) throw MalformedMessage();
    const std::string_view taken = rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
    return taken;
}

std::uint64_t Decoder::big_endian(int num_bytes) {
    std::uint64_t value = 0;
    for (const char c : take(num_bytes)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
}

bool Decoder::nil() {
    if (peek() != 0xc0) return false;
    rest_.remove_prefix(1);
    return true;
}

bool Decoder::boolean() {
    const unsigned tag = byte();
    if (tag != 0xc2 && tag != 0xc3) throw MalformedMessage();
    return tag == 0xc3;
}

std::int64_t Decoder::integer() {
    const unsigned tag = byte();
    if (tag <= 0x7f) return tag;
    if (tag >= 0xe0) return static_cast<std::int8_t>(tag);
    switch (tag) {
        case 0xcc: return static_cast<std::int64_t>(big_endian(1));
        case 0xcd: return static_cast<std::int64_t>(big_endian(2));
        case 0xce: return static_cast<std::int64_t>(big_endian(4));
        case 0xcf: {
            const std::uint64_t value = big_endian(8);
            if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) throw MalformedMessage();
            return static_cast<std::int64_t>(value);
        }
        case 0xd0: return static_cast<std::int8_t>(big_endian(1));
        case 0xd1: return static_cast<std::int16_t>(big_endian(2));
        case 0xd2: return static_cast<std::int32_t>(big_endian(4));
        case 0xd3: return static_cast<std::int64_t>(big_endian(8));
        default: throw MalformedMessage();
    }
}

double Decoder::real() {
    switch (peek()) {
        case 0xca: byte(); return std::bit_cast<float>(static_cast<std::uint32_t>(big_endian(4)));
        case 0xcb: byte(); return std::bit_cast<double>(big_endian(8));
        default: return static_cast<double>(integer());
    }
}

std::string_view Decoder::string() {
    const unsigned tag = byte();
    if ((tag & 0xe0) == 0xa0) return take(tag & 0x1f);
    switch (tag) {
        case 0xd9: return take(big_endian(1));
        case 0xda: return take(big_endian(2));
        case 0xdb: return take(big_endian(4));
        default: throw MalformedMessage();
    }
}

std::string_view Decoder::binary() {
    switch (byte()) {
        case 0xc4: return take(big_endian(1));
        case 0xc5: return take(big_endian(2));
        case 0xc6: return take(big_endian(4));
        default: throw MalformedMessage();
    }
}

std::size_t Decoder::container(unsigned fixed_mask, unsigned fixed_tag, unsigned tag16, std::size_t min_bytes) {
    const unsigned tag = byte();
    std::uint64_t size = 0;
    if ((tag & fixed_mask) == fixed_tag) {
        size = tag & ~fixed_mask & 0xff;
    } else if (tag == tag16) {
        size = big_endian(2);
    } else if (tag == tag16 + 1) {
        size = big_endian(4);
    } else {
        throw MalformedMessage();
    }
    if (size * min_bytes > rest_.size()) throw MalformedMessage();
    return size;
}

std::size_t Decoder::array() { return container(0xf0, 0x90, 0xdc, 1); }

std::size_t Decoder::map() { return container(0xf0, 0x80, 0xde, 2); }

// Step over one value without its elements, and return how many values follow that belong to it.
std::uint64_t Decoder::skip_one() {
    const unsigned tag = peek();
    if ((tag & 0xf0) == 0x90 || tag == 0xdc || tag == 0xdd) return array();
    if ((tag & 0xf0) == 0x80 || tag == 0xde || tag == 0xdf) return 2 * static_cast<std::uint64_t>(map());
    if ((tag & 0xe0) == 0xa0 || (tag >= 0xd9 && tag <= 0xdb)) {
        string();
        return 0;
    }
    byte();
    if (tag <= 0x7f || tag >= 0xe0 || tag == 0xc0 || tag == 0xc2 || tag == 0xc3) return 0;
    switch (tag) {
        case 0xc4: take(big_endian(1)); break;
        case 0xc5: take(big_endian(2)); break;
        case 0xc6: take(big_endian(4)); break;
        case 0xc7: take(big_endian(1) + 1); break;
        case 0xc8: take(big_endian(2) + 1); break;
        case 0xc9: take(big_endian(4) + 1); break;
        case 0xca: case 0xce: case 0xd2: take(4); break;
        case 0xcb: case 0xcf: case 0xd3: take(8); break;
        case 0xcc: case 0xd0: take(1); break;
        case 0xcd: case 0xd1: take(2); break;
        case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: take(1 + (std::uint64_t{1} << (tag - 0xd4))); break;
        default: throw MalformedMessage();
    }
    return 0;
}

void Decoder::skip() {
    // Counting instead of recursing: deep nesting must not use up the stack. Each value takes at least a byte, so the
    // count stays far below overflow.
    for (std::uint64_t pending = 1; pending > 0; --pending) pending += skip_one();
}

// ---- UTF-8

bool is_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        if (lead < 0x80) {
            ++i;
            continue;
        }
        const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        if (lead < 0xc2 || lead > 0xf4 || length > text.size() - i) return false;
        const auto second = static_cast<unsigned char>(text[i + 1]);
        const bool is_outside = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                                (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
        if (is_outside) return false;
        for (std::size_t k = 1; k < length; ++k) {
            if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
        }
        i += length;
    }
    return true;
}

}  // namespace libxllm
