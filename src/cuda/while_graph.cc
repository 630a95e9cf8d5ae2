#include "cuda/while_graph.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "cuda/check.h"

namespace adder::cuda {

#if CUDART_VERSION >= 12040

namespace {

using OwnedGraph = std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)>;

// Adds what `record` puts on the stream to the graph. Memory may be allocated meanwhile.
void capture_to(cudaGraph_t graph, Stream stream, const std::function<void()>& record) {
  check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                      cudaStreamCaptureModeRelaxed),
        "to begin a part of a graph");
  cudaGraph_t ended = nullptr;
  try {
    record();
  } catch (...) {
    cudaStreamEndCapture(stream, &ended);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &ended), "to capture a part of a graph");
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "to count the nodes of a graph");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "to list the nodes of a graph");
  return nodes;
}

// A while node that comes after all nodes there are; its body's graph.
cudaGraph_t add_while_node(cudaGraph_t graph, cudaGraphConditionalHandle handle) {
  const std::vector<cudaGraphNode_t> before = nodes_of(graph);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  check(cudaGraphAddNode(&node, graph, before.data(), nullptr, before.size(), &params),
        "to add a while node to a graph");
#else
  check(cudaGraphAddNode(&node, graph, before.data(), before.size(), &params),
        "to add a while node to a graph");
#endif
  return params.conditional.phGraph_out[0];
}

}  // namespace

bool WhileGraph::is_supported() {
  constexpr int kFirst = 12040;
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "to read the driver's version");
  return driver >= kFirst;
}

WhileGraph::WhileGraph(Stream stream, const Body& before, const Body& body) {
  cudaGraph_t raw = nullptr;
  check(cudaGraphCreate(&raw, 0), "to create a graph");
  const OwnedGraph graph(raw, cudaGraphDestroy);
  cudaGraphConditionalHandle handle{};
  check(cudaGraphConditionalHandleCreate(&handle, raw, 0, cudaGraphCondAssignDefault),
        "to create a condition");
  check(handle != 0 ? cudaSuccess : cudaErrorInvalidResourceHandle, "to create a condition");
  capture_to(raw, stream, [&] { before(handle); });
  capture_to(add_while_node(raw, handle), stream, [&] { body(handle); });
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, raw, 0), "to instantiate a graph");
  executable_ = executable;
}

#else

bool WhileGraph::is_supported() { return false; }

WhileGraph::WhileGraph(Stream /*stream*/, const Body& /*before*/, const Body& /*body*/) {
  check(cudaErrorNotSupported, "to create a while graph");
}

#endif

WhileGraph::~WhileGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

void WhileGraph::launch(Stream stream) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream), "to launch a graph");
}

}  // namespace adder::cuda
