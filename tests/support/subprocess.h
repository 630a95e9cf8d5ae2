#pragma once

// Runs a program as a user would: arguments, standard input, both outputs, exit code.

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace adder::test {

struct Outcome {
  int exit_code = -1;  ///< 128 + signal if a signal ended it, as a shell reports it
  std::string out;
  std::string err;
};

/// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::string& path);

/// A running program. Its outputs go to files, so that it never waits for a reader.
class Subprocess {
 public:
  /// `environment` holds NAME=VALUE entries that are added to this process's own; NAME= alone
  /// removes one.
  explicit Subprocess(const std::vector<std::string>& command, const std::string& input = {},
                      const std::vector<std::string>& environment = {});
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  /// Blocks until something was written to standard output; false if the program ended first.
  bool wait_for_output();
  void send(int signal) const;
  Outcome wait();

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

Outcome run(const std::vector<std::string>& command, const std::string& input = {},
            const std::vector<std::string>& environment = {});

}  // namespace adder::test
