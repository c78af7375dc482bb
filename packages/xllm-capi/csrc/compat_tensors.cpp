#include "compat_tensors.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "failure.hpp"
#include "protocol.hpp"

namespace libxllm {

namespace {

constexpr int kMaxRank = 3;
constexpr std::int64_t kMaxValues = kMaxFrameSize / sizeof(float);

[[noreturn]] void refuse(const std::string &message) { throw Failure(XLLM_ERROR_INVALID_ARGUMENT, message); }

float from_half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 0x1f;
    const int fraction = bits & 0x3ff;
    const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
    return sign * std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
}

float from_bfloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// Append `count` values of the type Source, each through `convert`; they need not be aligned.
template <typename Source, typename Target, typename Convert>
void append(const void *values, std::size_t count, std::vector<Target> &target, Convert &&convert) {
    target.reserve(target.size() + count);
    for (std::size_t i = 0; i < count; ++i) {
        Source value;
        std::memcpy(&value, static_cast<const char *>(values) + i * sizeof value, sizeof value);
        target.push_back(static_cast<Target>(convert(value)));
    }
}

constexpr auto kAsItIs = [](auto value) { return value; };

// Read `count` values of one of the kinds that are taken.
void read_values(const XLLM_Tensor &tensor, std::size_t count, const std::string &where, OwnedTensor &owned) {
    const auto floats = [&]<typename Source>(Source, auto convert) {
        append<Source>(tensor.data, count, owned.floats, convert);
    };
    const auto integers = [&]<typename Source>(Source) {
        owned.is_integral = true;
        append<Source>(tensor.data, count, owned.integers, kAsItIs);
    };
    switch (tensor.dtype) {
        case XLLM_DTYPE_FLOAT16: return floats(std::uint16_t{}, from_half);
        case XLLM_DTYPE_BFLOAT16: return floats(std::uint16_t{}, from_bfloat);
        case XLLM_DTYPE_FLOAT32: return floats(float{}, kAsItIs);
        case XLLM_DTYPE_FLOAT64: return floats(double{}, kAsItIs);
        case XLLM_DTYPE_INT8: return integers(std::int8_t{});
        case XLLM_DTYPE_INT16: return integers(std::int16_t{});
        case XLLM_DTYPE_INT32: return integers(std::int32_t{});
        case XLLM_DTYPE_INT64: return integers(std::int64_t{});
        case XLLM_DTYPE_BOOL: return integers(std::uint8_t{});
        default:
            refuse(where + ".dtype is " + std::to_string(tensor.dtype) +
                   ", but floats, signed integers and booleans are taken.");
    }
}

OwnedTensor read_tensor(const XLLM_Tensor &tensor, std::string name, const std::string &where) {
    OwnedTensor owned;
    owned.name = std::move(name);
    const int rank = tensor.dims.rank;
    if (rank < 1 || rank > kMaxRank) refuse(where + ".dims.rank must be from 1 to 3, not " + std::to_string(rank) + ".");
    std::int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) {
        const int size = tensor.dims.dim[axis];
        const std::string field = where + ".dims.dim[" + std::to_string(axis) + "]";
        if (size < 1) refuse(field + " must be above 0, not " + std::to_string(size) + ".");
        if (size > kMaxValues / count) refuse(field + " makes the tensor larger than a request may be.");
        count *= size;
        owned.shape.push_back(size);
    }
    if (tensor.data == nullptr) refuse(where + ".data must not be NULL.");
    read_values(tensor, static_cast<std::size_t>(count), where, owned);
    return owned;
}

// The one tensor of a value.
const XLLM_Tensor &single(const XLLM_MM_Value &value, const std::string &where) {
    if (value.is_single_tensor) return value.data.tensor;
    const XLLM_Tensors &tensors = value.data.tensors;
    if (tensors.entries == nullptr || tensors.entries_size != 1) {
        refuse(where + " holds " + std::to_string(tensors.entries_size) + " tensors, but must hold one.");
    }
    return tensors.entries[0];
}

template <typename Entries>
void check_entries(const Entries &entries, const char *where) {
    if (entries.entries == nullptr || entries.entries_size == 0) {
        refuse(std::string(where) + ".entries must not be NULL or empty.");
    }
}

void read_dictionary(const XLLM_MM_Dict &dictionary, TensorInput &input) {
    check_entries(dictionary, "mm_data.dict");
    for (std::size_t i = 0; i < dictionary.entries_size; ++i) {
        const XLLM_MM_DictEntry &entry = dictionary.entries[i];
        std::string key(entry.key, strnlen(entry.key, sizeof entry.key));
        const std::string where = "mm_data.dict.entries[" + std::to_string(i) + "] (" + key + ")";
        input.tensors.push_back(read_tensor(single(entry.value, where), std::move(key), where));
    }
}

// Append an item's embeddings, and the places of the tokens that they replace.
void read_item(const XLLM_MM_Item &item, const std::string &where, std::size_t num_token_ids, OwnedTensor &places,
               OwnedTensor &embeddings) {
    if (item.type != XLLM_MM_TYPE_EMBEDDING) {
        refuse(where + ".type is " + std::to_string(item.type) + ", but XLLM_MM_TYPE_EMBEDDING is taken.");
    }
    const auto [offset, length] = item.state.token_pos;
    if (length == 0 || offset >= num_token_ids || length > num_token_ids - offset) {
        refuse(where + ".state.token_pos must lie within the " + std::to_string(num_token_ids) + " token_ids.");
    }
    const OwnedTensor tensor = read_tensor(single(item.value, where), "", where);
    if (tensor.is_integral) refuse(where + " must hold floats.");
    if (tensor.shape.size() != 2 || tensor.shape[0] != length) {
        refuse(where + " must have the shape [" + std::to_string(length) + ", hidden], as its token_pos says.");
    }
    if (!embeddings.shape.empty() && embeddings.shape[1] != tensor.shape[1]) {
        refuse(where + " has another hidden size than the item before it.");
    }
    embeddings.shape = {embeddings.shape.empty() ? tensor.shape[0] : embeddings.shape[0] + tensor.shape[0],
                        tensor.shape[1]};
    embeddings.floats.insert(embeddings.floats.end(), tensor.floats.begin(), tensor.floats.end());
    for (std::int64_t place = offset; place < std::int64_t{offset} + length; ++place) places.integers.push_back(place);
}

OwnedTensor integers_named(const char *name) {
    OwnedTensor owned;
    owned.name = name;
    owned.is_integral = true;
    return owned;
}

void read_items(const XLLM_MM_Items &items, TensorInput &input) {
    check_entries(items, "mm_data.items");
    OwnedTensor tokens = integers_named("LLM_REC_INPUT_TOKENS");
    OwnedTensor places = integers_named("LLM_REC_INPUT_INDICES");
    OwnedTensor embeddings;
    embeddings.name = "LLM_REC_INPUT_EMBEDDING";
    for (std::size_t i = 0; i < items.entries_size; ++i) {
        read_item(items.entries[i], "mm_data.items.entries[" + std::to_string(i) + "]", input.num_token_ids, places,
                  embeddings);
    }
    tokens.integers.assign(input.token_ids, input.token_ids + input.num_token_ids);
    for (OwnedTensor *row : {&tokens, &places}) row->shape = {static_cast<std::int64_t>(row->integers.size())};
    input.token_ids = nullptr;
    input.num_token_ids = 0;
    for (OwnedTensor *owned : {&tokens, &places, &embeddings}) input.tensors.push_back(std::move(*owned));
}

}  // namespace

xllm_tensor OwnedTensor::view() const {
    const void *values = is_integral ? static_cast<const void *>(integers.data()) : floats.data();
    const std::int32_t dtype = is_integral ? XLLM_TENSOR_INT64 : XLLM_TENSOR_FLOAT32;
    return {name.c_str(), dtype, static_cast<std::int32_t>(shape.size()), shape.data(), values};
}

TensorInput tensor_input(const XLLM_MM_Data &data, const std::int32_t *token_ids, std::size_t num_token_ids) {
    TensorInput input;
    input.token_ids = token_ids;
    input.num_token_ids = num_token_ids;
    if (data.is_dict) {
        read_dictionary(data.data.dict, input);
    } else {
        read_items(data.data.items, input);
    }
    for (const OwnedTensor &tensor : input.tensors) input.views.push_back(tensor.view());
    return input;
}

}  // namespace libxllm
