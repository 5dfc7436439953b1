#include "train/data.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "model/parts.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using test::expect_error;
using test::put;
using test::TempDir;
using Ints = std::vector<int32_t>;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic, header[1] = version, header[2] = tokens;
    return bytes_of(header);
}

Ints all_of(const TokenFile& file) {
    Ints tokens(file.tokens());
    file.read(0, file.tokens(), tokens.data());
    return tokens;
}

TEST(TokenFile, ReadsEveryFormat) {
    TempDir dir;
    put(dir / "a.txt", "Hi\xff");
    EXPECT_EQ(all_of(TokenFile(dir / "a.txt", 256)), (Ints{72, 105, 255}));
    put(dir / "bare.bin", bytes_of<uint16_t>({1, 65535, 3}));
    EXPECT_EQ(all_of(TokenFile(dir / "bare.bin", 65536)), (Ints{1, 65535, 3}));
    put(dir / "bare32.bin", bytes_of<uint32_t>({1, 128255, 3}));
    EXPECT_EQ(all_of(TokenFile(dir / "bare32.bin", 128256)), (Ints{1, 128255, 3}));
    put(dir / "gpt2.bin", llmc_header(20240520, 1, 3) + bytes_of<uint16_t>({7, 8, 9}));
    EXPECT_EQ(all_of(TokenFile(dir / "gpt2.bin", 50257)), (Ints{7, 8, 9}));
    EXPECT_EQ(all_of(TokenFile(dir / "gpt2.bin", 70000)),
              (Ints{7, 8, 9}));  // the header decides, not the vocabulary
    put(dir / "llama3.bin", llmc_header(20240801, 7, 2) + bytes_of<uint32_t>({128000, 9}));
    EXPECT_EQ(all_of(TokenFile(dir / "llama3.bin", 128256)), (Ints{128000, 9}));
}

// If a file of 32-bit tokens with a small vocabulary is read as 16-bit tokens, every second one is
// 0.
TEST(TokenFile, RefusesWhatIsMostLikelyWider) {
    TempDir dir;
    std::vector<uint32_t> wide;
    std::vector<uint16_t> narrow, zeros(64, 0);
    for (uint32_t i = 0; i < 40; ++i) wide.push_back(i * 7 % 31), narrow.push_back(i % 2 * 5);
    put(dir / "wide.bin", bytes_of(wide));
    expect_error([&] { TokenFile(dir / "wide.bin", 256); },
                 "wide.bin: every second of its 16-bit numbers is 0");
    EXPECT_EQ(all_of(TokenFile(dir / "wide.bin", 70000)), Ints(wide.begin(), wide.end()));
    wide.back() = 1 << 16;  // one such number shows that it is not
    put(dir / "wide.bin", bytes_of(wide));
    EXPECT_EQ(TokenFile(dir / "wide.bin", 256).tokens(), 80);
    zeros[60] = 5;  // mostly zeros, which does not show anything
    put(dir / "zeros.bin", bytes_of(zeros));
    EXPECT_EQ(TokenFile(dir / "zeros.bin", 256).tokens(), 64);
    put(dir / "other.bin", bytes_of(narrow));  // each first one is 0
    EXPECT_EQ(TokenFile(dir / "other.bin", 256).tokens(), 40);
}

TEST(TokenFile, SaysWhatItWasReadAs) {
    TempDir dir;
    const auto read_as = [&](const char* name, const std::string& bytes, int64_t vocab) {
        put(dir / name, bytes);
        return TokenFile(dir / name, vocab).read_as();
    };
    const std::string zeros(2000, '\0'), header = llmc_header(20240520, 1, 3),
                                         header32 = llmc_header(20240801, 7, 3);
    EXPECT_EQ(read_as("a.bin", zeros, 256), "uint16 tokens");
    EXPECT_EQ(read_as("a.bin", zeros, 70000), "uint32 tokens");
    EXPECT_EQ(read_as("a.bin", header + zeros.substr(0, 6), 256), "llm.c's uint16 tokens");
    EXPECT_EQ(read_as("a.bin", header32 + zeros.substr(0, 12), 256), "llm.c's uint32 tokens");
    const char *text = "text, each byte a token", *binary = "each byte a token, but it is not text";
    EXPECT_EQ(read_as("notes", "Hi\xff", 256), text);
    EXPECT_EQ(read_as("a.txt", zeros, 256), text);
    EXPECT_EQ(read_as("train.tokens", zeros, 256).find(binary), 0u);
    EXPECT_EQ(read_as("late", std::string(1 << 16, 'x') + zeros, 256), text);
    EXPECT_EQ(read_as("early", std::string((1 << 16) - 1, 'x') + zeros, 256).find(binary), 0u);
    EXPECT_EQ(TokenFile(dir / "notes", 256).description(),
              dir / "notes (text, each byte a token): 3 tokens");
}

TEST(TokenFile, RefusesBadFiles) {
    TempDir dir;
    auto open = [&](const char* name, int64_t vocab) {
        return [=, &dir] { TokenFile(dir / name, vocab); };
    };
    expect_error(open("absent.bin", 256), "absent.bin: cannot be read: No such file or directory");
    expect_error([&] { TokenFile(dir.path(), 256); }, "cannot be read: it is a directory");
    put(dir / "odd.bin", "abc");
    expect_error(open("odd.bin", 256),
                 "odd.bin: 3 bytes cannot be a whole number of 2-byte tokens");
    put(dir / "odd4.bin", "abcdef");
    expect_error(open("odd4.bin", 70000), "6 bytes cannot be a whole number of 4-byte tokens");
    put(dir / "big.bin", bytes_of<uint16_t>({1, 2, 97, 3}));
    expect_error(open("big.bin", 97),
                 "big.bin: token 97 at position 2 is not below the vocabulary's size 97");
    put(dir / "big.txt", "ab~");
    expect_error(open("big.txt", 100), "token 126 at position 2");
    put(dir / "huge.bin", bytes_of<uint32_t>({5, 0xffffffffu}));
    expect_error(open("huge.bin", 70000), "at position 1 is not below the vocabulary's size 70000");
    put(dir / "version.bin", llmc_header(20240520, 2, 1) + "ab");
    expect_error(open("version.bin", 256), "llm.c header with version 2; version 1 is supported");
    put(dir / "version7.bin", llmc_header(20240801, 1, 1) + "abcd");
    expect_error(open("version7.bin", 256), "llm.c header with version 1; version 7 is supported");
    put(dir / "short.bin", llmc_header(20240520, 1, 100) + "ab");
    expect_error(open("short.bin", 65536),
                 "announces 100 tokens, which makes 1224 bytes; the file has 1026");
    put(dir / "negative.bin", llmc_header(20240520, 1, -1) + "ab");
    expect_error(open("negative.bin", 65536), "announces -1 tokens");
    put(dir / "header.bin", llmc_header(20240520, 1, 0).substr(0, 100));
    expect_error(open("header.bin", 65536), "the file has 100");
}

TEST(DataLoader, SamplesFollowEachOtherAndWrapAround) {
    TempDir dir;
    put(dir / "t.txt", std::string("\0\1\2\3\4\5\6\7\10\11", 10));  // 0..9: three samples of 3
    TokenFile file(dir / "t.txt", 256);
    DataLoader loader(file, {.seq = 3});
    EXPECT_EQ(loader.samples(), 3);
    HostBatch b = loader.batch(1, 3);
    EXPECT_EQ(b.tokens, (Ints{3, 4, 5, 6, 7, 8, 0, 1, 2}));
    EXPECT_EQ(b.targets, (Ints{4, 5, 6, 7, 8, 9, 1, 2, 3}));
    EXPECT_EQ(b.positions, (Ints{0, 1, 2, 0, 1, 2, 0, 1, 2}));
    EXPECT_TRUE(b.document_starts.empty());
    EXPECT_EQ(b.counted_targets, 9);
    EXPECT_EQ(loader.counted_targets(1, 3), 9);
    EXPECT_EQ(loader.batch(0, 1).tokens, loader.batch(int64_t(3) << 40, 1).tokens);

    Batch device = to_device(b);
    EXPECT_EQ(device.sequences(), 3);
    EXPECT_EQ(device.length(), 3);
    EXPECT_EQ(device.targets.to_host<int32_t>(), b.targets);
    EXPECT_EQ(device.counted_targets, 9);
    EXPECT_FALSE(bool(device.document_starts));
}

TEST(DataLoader, ShortestDataIsOneSample) {
    TempDir dir;
    put(dir / "t.txt", "abcd");
    TokenFile file(dir / "t.txt", 256);
    EXPECT_EQ(DataLoader(file, {.seq = 3}).samples(), 1);
    expect_error([&] { DataLoader(file, {.seq = 4}); },
                 "t.txt: 4 tokens cannot fill one sample, which needs --seq 4 plus one");
    expect_error([&] { DataLoader(file, {.seq = 0}); }, "--seq 0");
    expect_error([&] { DataLoader(file, {.seq = INT64_MAX}); }, "cannot fill one sample");
    put(dir / "empty.txt", "");
    TokenFile empty(dir / "empty.txt", 256);
    expect_error([&] { DataLoader(empty, {.seq = 1}); }, "empty.txt: 0 tokens cannot fill");
}

TEST(DataLoader, DocumentsRestartPositionsAndIgnoreTheTargetThatCrosses) {
    TempDir dir;
    put(dir / "t.txt", "ab#cd##e");
    TokenFile file(dir / "t.txt", 256);
    DataLoader loader(file, {.seq = 7, .document_token = '#'});
    HostBatch b = loader.batch(0, 1);
    EXPECT_EQ(b.tokens, (Ints{'a', 'b', '#', 'c', 'd', '#', '#'}));
    EXPECT_EQ(b.targets, (Ints{'b', -100, 'c', 'd', -100, -100, 'e'}));
    EXPECT_EQ(b.positions, (Ints{0, 1, 0, 1, 2, 0, 0}));
    EXPECT_EQ(b.document_starts, (Ints{0, 0, 2, 2, 2, 5, 6}));
    EXPECT_EQ(b.counted_targets, 4);
    EXPECT_EQ(loader.counted_targets(0, 2), 8);
    EXPECT_EQ(to_device(b).document_starts.to_host<int32_t>(), b.document_starts);
    expect_error([&] { DataLoader(file, {.seq = 7, .document_token = 256}); },
                 "--document-token 256: is not a token of a vocabulary of 256");
    expect_error([&] { DataLoader(file, {.seq = 7, .ignore_token = -1}); },
                 "--ignore-token -1: is not a token of a vocabulary of 256");
}

TEST(DataLoader, IgnoredTokensAreNoTargets) {
    TempDir dir;
    put(dir / "t.txt", "a__b");
    TokenFile file(dir / "t.txt", 256);
    DataLoader loader(file, {.seq = 3, .ignore_token = '_'});
    HostBatch b = loader.batch(0, 1);
    EXPECT_EQ(b.tokens, (Ints{'a', '_', '_'}));
    EXPECT_EQ(b.targets, (Ints{-100, -100, 'b'}));
    EXPECT_EQ(b.counted_targets, 1);
}

TEST(DataLoader, ShuffleVisitsEverySampleOnceAPassInAnotherOrderEachPass) {
    TempDir dir;
    std::vector<uint16_t> tokens(101);
    for (int i = 0; i < 101; ++i) tokens[i] = uint16_t(i);
    put(dir / "t.bin", bytes_of(tokens));
    TokenFile file(dir / "t.bin", 101);
    DataLoader loader(file, {.seq = 1, .shuffle_seed = 5});
    Ints first = loader.batch(0, 100).tokens, second = loader.batch(100, 100).tokens;
    EXPECT_EQ(std::set<int32_t>(first.begin(), first.end()).size(), 100u);
    EXPECT_EQ(std::set<int32_t>(second.begin(), second.end()).size(), 100u);
    EXPECT_NE(first, second);
    EXPECT_EQ(loader.batch(37, 1).tokens[0], first[37]);  // in whichever batch
    // Here a row is its only token.
    EXPECT_EQ(loader.rows(99, 2), (std::vector<int64_t>{first[99], second[0]}));
    EXPECT_NE(DataLoader(file, {.seq = 1, .shuffle_seed = 6}).batch(0, 100).tokens, first);
}

TEST(Permutation, IsOneForEverySize) {
    for (int64_t size : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000}) {
        Permutation permutation(size, 3, "x");
        std::set<int64_t> seen;
        for (int64_t i = 0; i < size; ++i) seen.insert(permutation(i));
        EXPECT_EQ(int64_t(seen.size()), size);
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), size - 1);
    }
    Permutation large(int64_t(1) << 50, 3, "x");
    EXPECT_NE(large(0), large(1));
}

}  // namespace
}  // namespace ultrascale
