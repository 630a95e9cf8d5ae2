// Counts a program's calls of the CUDA driver, its own and those that the CUDA runtime makes for
// it. The program is neither changed nor linked with this: the driver loads the library that
// $CUDA_INJECTION64_PATH names before its first call. CUPTI, which tells of each call, is loaded
// from where the dynamic linker looks.
//
// At exit a JSON object is written to the file that $ADDER_CUDA_CALLS names:
//   schema, kind       1, "cuda_calls"
//   calls              how often each function of the driver was called
//   events             of each call that waits for the device, and of each launch of a graph, in
//                      order: call, at_s since the first call of all, for_s that it took

#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
  // Inside the driver's first call: nothing can be thrown, and a run that is not counted is none.
  std::fprintf(stderr, "cuda_calls: %s\n", what.c_str());
  std::_Exit(2);
}

bool begins_with_one_of(std::string_view call, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return call.starts_with(name); });
}

// Names end in versions and ways to say the default stream: cuMemcpyHtoD_v2_ptds.
bool waits_for_device(std::string_view call) {
  if (call.starts_with("cuMemcpy")) return call.find("Async") == std::string_view::npos;
  return begins_with_one_of(call,
                            {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"});
}

struct Event {
  std::string_view call;
  Clock::time_point begin, end;
};

// What was called so far, by any thread.
class Calls {
 public:
  explicit Calls(std::string file) : file_(std::move(file)) {}

  Clock::time_point enter(std::string_view call) {
    const std::lock_guard lock(mutex_);
    ++counts_[call];
    return Clock::now();
  }
  void leave(std::string_view call, Clock::time_point begin) {
    if (!waits_for_device(call) && !call.starts_with("cuGraphLaunch")) return;
    const std::lock_guard lock(mutex_);
    events_.push_back({call, begin, Clock::now()});
  }

  void save() {
    const std::lock_guard lock(mutex_);
    nlohmann::ordered_json events = nlohmann::ordered_json::array();
    for (const Event& e : events_) {
      events.push_back({{"call", e.call},
                        {"at_s", seconds(e.begin - start_)},
                        {"for_s", seconds(e.end - e.begin)}});
    }
    const nlohmann::ordered_json report = {
        {"schema", 1}, {"kind", "cuda_calls"}, {"calls", counts_}, {"events", events}};
    std::ofstream out(file_);
    out << report.dump(1) << '\n';
    if (!out.flush()) fail(file_ + " cannot be written, expected a file of $ADDER_CUDA_CALLS");
  }

 private:
  static double seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  const std::string file_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::map<std::string_view, std::int64_t> counts_;  // CUPTI's names live as long as the process
  std::vector<Event> events_;
};

Calls* calls = nullptr;  // never destroyed: threads may call CUDA until the process ends

void CUPTIAPI on_call(void* /*user*/, CUpti_CallbackDomain /*domain*/, CUpti_CallbackId /*id*/,
                      const void* data) {
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (call.callbackSite == CUPTI_API_ENTER) {
    const auto begin = calls->enter(call.functionName).time_since_epoch().count();
    *call.correlationData = static_cast<std::uint64_t>(begin);
  } else {
    const auto begin = static_cast<Clock::rep>(*call.correlationData);
    calls->leave(call.functionName, Clock::time_point(Clock::duration(begin)));
  }
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail(std::string("CUPTI has no ") + name);
}

void subscribe() {
  const std::string name = "libcupti.so." + std::to_string(CUDA_VERSION / 1000);
  void* cupti = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (cupti == nullptr) {
    fail(name + " cannot be loaded, expected it where the dynamic linker looks: " + dlerror());
  }
  decltype(&cuptiSubscribe) subscribe_to = nullptr;
  decltype(&cuptiEnableDomain) enable_domain = nullptr;
  find(cupti, "cuptiSubscribe", subscribe_to);
  find(cupti, "cuptiEnableDomain", enable_domain);
  CUpti_SubscriberHandle subscriber = nullptr;
  CUptiResult result = subscribe_to(&subscriber, on_call, nullptr);
  if (result == CUPTI_SUCCESS) {
    result = enable_domain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
  }
  if (result != CUPTI_SUCCESS) fail("CUPTI failed with error " + std::to_string(result));
}

}  // namespace

// What the driver calls, by this name.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* file = std::getenv("ADDER_CUDA_CALLS");
  if (file == nullptr) fail("$ADDER_CUDA_CALLS is not set, expected the file to write to");
  calls = new Calls(file);
  subscribe();
  std::atexit([] { calls->save(); });
  return 1;
}
