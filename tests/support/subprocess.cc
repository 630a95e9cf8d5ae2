#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace adder::test {
namespace {

void redirect(const std::string& path, int flags, int descriptor) {
  const int file = ::open(path.c_str(), flags, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(126);
  ::close(file);
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "adder-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream stream(path_ / name, std::ios::binary);
  stream << content;
  if (!stream.flush()) throw std::runtime_error("cannot write " + file(name));
  return file(name);
}

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

Subprocess::Subprocess(const std::vector<std::string>& command, const std::string& input,
                       const std::vector<std::string>& environment) {
  const std::string in = folder_.write("in", input);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  redirect(in, O_RDONLY, STDIN_FILENO);
  redirect(folder_.file("out"), O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  redirect(folder_.file("err"), O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

Subprocess::~Subprocess() {
  if (ended_) return;
  send(SIGKILL);
  wait();
}

bool Subprocess::wait_for_output() {
  while (!ended_) {
    if (!read_file(folder_.file("out")).empty()) return true;
    ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

void Subprocess::send(int signal) const { ::kill(pid_, signal); }

Outcome Subprocess::wait() {
  if (!ended_) ::waitpid(pid_, &status_, 0);
  ended_ = true;
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  outcome.out = read_file(folder_.file("out"));
  outcome.err = read_file(folder_.file("err"));
  return outcome;
}

Outcome run(const std::vector<std::string>& command, const std::string& input,
            const std::vector<std::string>& environment) {
  return Subprocess(command, input, environment).wait();
}

}  // namespace adder::test
