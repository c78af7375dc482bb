// The message reader against random bytes: valid messages with flipped, cut and added bytes, and pure noise. It must
// throw MalformedMessage or read, and touch nothing outside the bytes (the sanitizers watch). Argument: rounds.
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>

#include "check.h"
#include "protocol.hpp"

using namespace libxllm;

namespace {

struct Counter : MessageHandler {
    void on_ready(Ready ready) override { total += ready.model.size(); }
    void on_failed(Outcome outcome) override { total += outcome.message.size(); }
    void on_delta(std::uint64_t, Event &event) override {
        const xllm_event *view = event.view();
        total += view->text_length + view->num_token_ids;
        for (std::size_t i = 0; i < view->num_logprobs; ++i) {
            for (std::size_t k = 0; k < view->logprobs[i].num_alternatives; ++k) {
                total += static_cast<std::size_t>(view->logprobs[i].alternatives[k].token_id & 1);
            }
        }
        Answer answer;
        answer.append(event.delta);
        answer.append(event.delta);
        free_response(answer.to_response("model"));
    }
    void on_finished(std::uint64_t, Outcome outcome, Usage) override { total += outcome.message.size(); }
    void on_vectors(std::uint64_t, Outcome outcome, Usage usage, Vectors vectors) override {
        total += outcome.message.size() + vectors.values.size();
        free_embeddings(to_embeddings(std::move(vectors), usage));
    }
    void on_paths(std::uint64_t, Outcome outcome, Usage usage, Paths paths) override {
        total += outcome.message.size() + paths.paths.size();
        free_recommendations(to_recommendations(std::move(paths), usage, "request", "model"));
    }
    void on_stats(std::uint64_t, const xllm_metrics &metrics) override { total += metrics.num_blocks > 0; }
    std::size_t total = 0;
};

std::string outputs_message() {
    std::string bytes;
    Encoder encoder(bytes);
    encoder.array(3);
    encoder.string("outputs");
    encoder.array(2);
    for (int id = 1; id <= 2; ++id) {
        encoder.array(7);
        encoder.integer(id);
        encoder.integer(0);
        encoder.string("some new text that is longer than thirty-one bytes");
        encoder.array(2);
        encoder.integer(70000);
        encoder.integer(3);
        encoder.array(2);
        for (int token = 0; token < 2; ++token) {
            encoder.array(3);
            encoder.integer(token);
            encoder.real(-0.25);
            encoder.array(1);
            encoder.array(2);
            encoder.integer(-1);
            encoder.integer(-3);
        }
        encoder.nil();
        encoder.string("stop");
    }
    encoder.array(1);
    encoder.array(5);
    encoder.integer(1);
    encoder.nil();
    encoder.nil();
    encoder.integer(12);
    encoder.integer(0);
    return bytes;
}

std::string ready_message() {
    std::string bytes;
    Encoder encoder(bytes);
    encoder.array(11);
    encoder.string("ready");
    encoder.integer(1);
    for (const char *text : {"model", "python", "cpu", "float32"}) encoder.string(text);
    for (const std::int64_t number : {4096LL, 49152LL, 64LL, 16LL, 5000000000LL}) encoder.integer(number);
    return bytes;
}

std::string vectors_message() {
    return std::string("\x98\xa7vectors\x05\xc0\xc0\x0c\x00\x02\xc4\x10", 17) + std::string(16, '\x01');
}

std::string paths_message() {
    std::string bytes;
    Encoder encoder(bytes);
    encoder.array(8);
    encoder.string("paths");
    encoder.integer(6);
    encoder.nil();
    encoder.nil();
    for (const int number : {12, 4, 1}) encoder.integer(number);
    encoder.array(1);
    encoder.array(7);
    encoder.array(2);
    for (const int token : {300, 7}) encoder.integer(token);
    encoder.array(2);
    for (const double logprob : {-0.5, -1.25}) encoder.real(logprob);
    encoder.real(-1.75);
    encoder.array(1);
    encoder.integer(5000000000LL);
    for (const char *text : {"document", "type"}) {
        encoder.array(1);
        encoder.string(text);
    }
    encoder.string("text");
    return bytes;
}

std::string unknown_message() {
    std::string bytes;
    Encoder encoder(bytes);
    encoder.array(3);
    encoder.string("surprise");
    encoder.map(2);
    encoder.string("a");
    encoder.boolean(true);
    encoder.string("b");
    encoder.array(20);
    for (int i = 0; i < 20; ++i) encoder.integer(-i * 1000000007LL);
    encoder.nil();
    return bytes;
}

std::size_t below(std::mt19937 &random, std::size_t limit) { return random() % limit; }

void mutate(std::string &bytes, std::mt19937 &random) {
    for (std::size_t changes = 1 + below(random, 4); changes > 0 && !bytes.empty(); --changes) {
        const std::size_t place = below(random, bytes.size());
        switch (below(random, 4)) {
            case 0: bytes[place] = static_cast<char>(random()); break;
            case 1: bytes.resize(place); break;
            case 2: bytes.insert(place, 1 + below(random, 8), static_cast<char>(random())); break;
            default: bytes.erase(place, 1 + below(random, 8)); break;
        }
    }
}

// Copied to memory of exactly its size, so that AddressSanitizer sees a read of one byte too many.
bool is_readable(const std::string &bytes, Counter &counter) {
    const std::unique_ptr<char[]> exact(new char[bytes.size()]);
    bytes.copy(exact.get(), bytes.size());
    try {
        MessageReader().read({exact.get(), bytes.size()}, counter);
        return true;
    } catch (const MalformedMessage &) {
        return false;
    }
}

void check_skip(std::mt19937 &random) {
    std::string nested(5000 + below(random, 5000), '\x91');
    nested += '\xc0';
    Decoder decoder(nested);
    decoder.skip();
    CHECK(decoder.at_end());
}

void check_numbers() {
    for (const std::int64_t number : {0LL, 127LL, 128LL, 255LL, 65536LL, 4294967295LL, 4294967296LL, -1LL, -32LL, -33LL,
                                      -128LL, -129LL, -2147483648LL, -2147483649LL, 9223372036854775807LL}) {
        std::string bytes;
        Encoder(bytes).integer(number);
        CHECK(Decoder(bytes).integer() == number);
        CHECK(Decoder(bytes).real() == static_cast<double>(number));
    }
    CHECK(is_utf8("") && is_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") && is_utf8("\xf4\x8f\xbf\xbf"));
    for (const char *wrong : {"\x80", "\xc0\xaf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8", "a\xe2\x82",
                              "\xc3", "\xc3\x28", "\xf0\x8f\xbf\xbf"}) {
        CHECK(!is_utf8(wrong));
    }
}

}  // namespace

int main(int argc, char **argv) {
    const int num_rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
    std::mt19937 random(20260);
    Counter counter;
    check_numbers();
    check_skip(random);
    const std::string messages[] = {outputs_message(), ready_message(), vectors_message(), paths_message(),
                                    unknown_message()};
    for (const std::string &message : messages) CHECK(is_readable(message, counter));
    CHECK(counter.total > 0);
    int num_readable = 0;
    for (int round = 0; round < num_rounds; ++round) {
        std::string bytes = messages[below(random, std::size(messages))];
        mutate(bytes, random);
        num_readable += is_readable(bytes, counter);
        std::string noise(below(random, 64), '\0');
        for (char &byte : noise) byte = static_cast<char>(random());
        num_readable += is_readable(noise, counter);
    }
    CHECK(num_readable > 0 && num_readable < 2 * num_rounds);
}
