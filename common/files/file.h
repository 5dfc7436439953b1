// Files that are read through a memory mapping, and written so that no reader ever sees a partial
// one.
//
// All errors are UserErrors of one line that starts with the file's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ultrascale {

// Prepares a name or text from a file for a one-line error message: escapes control characters and
// cuts long text.
std::string printable(std::string_view text);

// A regular file, mapped read-only.
class MappedFile {
public:
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();
    const std::string& path() const { return path_; }
    const unsigned char* data() const { return data_; }
    int64_t size() const { return size_; }
    std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_t(size_)}; }

private:
    std::string path_;
    const unsigned char* data_ = nullptr;
    int64_t size_ = 0;
};

// Writes to a temporary file next to `path`; commit() makes it durable (fsync) and renames it to
// `path`. Without commit() it is removed.
class AtomicFile {
public:
    explicit AtomicFile(const std::string& path);
    AtomicFile(const AtomicFile&) = delete;
    ~AtomicFile();
    void write(const void* bytes, int64_t count);
    void write(std::string_view text) { write(text.data(), int64_t(text.size())); }
    void commit();

private:
    std::string path_, temporary_;
    int descriptor_ = -1;
};
void write_file(const std::string& path, std::string_view text);

void make_directories(const std::string& dir);  // and their parents

// Replaces several files of a directory together; other files in it remain untouched.
//
//   1. the new files are written to dir/.saving/
//   2. dir/.saving/commit, a list of what is to be moved and removed, appears by a rename: from
//      now on the save is done
//   3. the files are renamed into dir, stale ones are removed, and so is dir/.saving
// If killed before 2, the directory still holds the former files; after 2, recover() finishes 3.
// Every load calls it.
class StagedFiles {
public:
    explicit StagedFiles(
        const std::string& dir);  // creates dir; finishes or discards a save that was killed
    StagedFiles(const StagedFiles&) = delete;
    ~StagedFiles();  // without commit(): discards the new files
    const std::string& staging() const { return staging_; }  // the directory for the new files
    // Moves all files of staging() into the directory and removes the `stale` ones (plain names)
    // from it.
    void commit(const std::vector<std::string>& stale = {});
    // Finishes a committed save. Several ranks may call it at once.
    static void recover(const std::string& dir);

private:
    std::string dir_, staging_;
    bool committed_ = false;
};

}  // namespace ultrascale
