# adder_add_op(NAME SOURCES ... [KERNELS ... [DOT]] [KERNELS_<tier> ...] [HEADERS ...] [TEST ...]
#              [BENCH ...] [CUDA ...] [HOPPER ...] [CUDA_TEST ...] [CUDA_BENCH ...]
#              [DEPENDS other operations])
#
# One folder per operation. SOURCES, which only what is for CUDA alone lacks, are compiled once;
# KERNELS once per instruction-set tier, each into the namespace tier_<name> (see
# src/core/cpu_tier.h); with DOT also for the tiers that add a dot product of bytes. KERNELS_<tier>
# are compiled for that tier alone, where the machine's architecture has it. CUDA, CUDA_TEST and
# CUDA_BENCH count only where the CUDA toolkit is; HOPPER files use instructions of sm_90a and are
# compiled for that alone. Defines
#   adder_op_NAME             object library, part of libadder
#   adder_op_NAME_cuda        likewise, the CUDA version
#   adder_op_NAME_bench       object library, part of the command line tool
#   NAME_test, NAME_cuda_test test programs registered with CTest
# and installs the contract header NAME.h, and HEADERS that it includes, as <adder/ops/NAME/...>.
set(ADDER_TIER_FLAGS_baseline "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(ADDER_TIERS baseline avx2 avx512)
  set(ADDER_TIERS_DOT ${ADDER_TIERS} avxvnni avx512vnni)
  set(ADDER_TIERS_MATRIX avx512bf16 amx)
  set(ADDER_TIER_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(ADDER_TIER_FLAGS_avxvnni ${ADDER_TIER_FLAGS_avx2} -mavxvnni)
  set(ADDER_TIER_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
  set(ADDER_TIER_FLAGS_avx512vnni ${ADDER_TIER_FLAGS_avx512} -mavx512vnni)
  set(ADDER_TIER_FLAGS_avx512bf16 ${ADDER_TIER_FLAGS_avx512vnni} -mavx512bf16)
  set(ADDER_TIER_FLAGS_amx ${ADDER_TIER_FLAGS_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64 AND CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(ADDER_TIERS baseline)
  set(ADDER_TIERS_DOT baseline dotprod i8mm)
  set(ADDER_TIERS_MATRIX i8mm)
  set(ADDER_TIER_FLAGS_dotprod -march=armv8.2-a+dotprod)
  set(ADDER_TIER_FLAGS_i8mm -march=armv8.2-a+dotprod+i8mm+bf16)
else()
  set(ADDER_TIERS baseline)
  set(ADDER_TIERS_DOT baseline)
  set(ADDER_TIERS_MATRIX "")
endif()

# adder_kernel_library(NAME TIER FILES ...): an object library of kernels for one tier.
function(adder_kernel_library name tier)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PRIVATE adder_options)
  target_compile_definitions(${name} PRIVATE ADDER_TIER=tier_${tier})
  target_compile_options(${name} PRIVATE ${ADDER_TIER_FLAGS_${tier}} -ffp-contract=fast
                                         -fno-math-errno -fno-trapping-math
                         # g++ 12 reports its own intrinsics' undefined registers.
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized -Wno-maybe-uninitialized>
                         # Before registers are given out it spreads a tile's loads too far: they
                         # spill. On x86-64 it is off anyway.
                         $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
endfunction()

# adder_tiered_kernels(TARGET FILES ... [DOT] [PARTS list]): compiles files once per tier; the
# object libraries go along with TARGET wherever it is linked: into libadder, unless another list is
# named.
function(adder_tiered_kernels target)
  cmake_parse_arguments(ARG "DOT" "PARTS" "FILES" ${ARGN})
  if(NOT ARG_PARTS)
    set(ARG_PARTS ADDER_PARTS)
  endif()
  set(tiers ${ADDER_TIERS})
  if(ARG_DOT)
    set(tiers ${ADDER_TIERS_DOT})
  endif()
  foreach(tier IN LISTS tiers)
    adder_kernels_of_tier(${target} ${target}_kernels_${tier} ${tier} ${ARG_PARTS} ${ARG_FILES})
  endforeach()
endfunction()

# adder_kernels_of_tier(TARGET LIBRARY TIER PARTS FILES ...): kernels of one tier that go along with
# TARGET and into the list PARTS.
function(adder_kernels_of_tier target library tier parts)
  adder_kernel_library(${library} ${tier} ${ARGN})
  set_property(TARGET ${target} APPEND PROPERTY ADDER_KERNEL_PARTS ${library})
  set_property(GLOBAL APPEND PROPERTY ${parts} ${library})
endfunction()

function(adder_add_op name)
  set(lists SOURCES KERNELS HEADERS TEST BENCH CUDA HOPPER CUDA_TEST CUDA_BENCH DEPENDS
            KERNELS_avx512bf16 KERNELS_amx KERNELS_i8mm)
  cmake_parse_arguments(ARG "DOT" "" "${lists}" ${ARGN})
  set(parts adder_core)
  if(ARG_SOURCES)
    adder_add_part(adder_op_${name} SOURCES ${ARG_SOURCES})
    list(APPEND parts adder_op_${name})
  endif()
  install(FILES ${name}.h ${ARG_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/adder/ops/${name})
  if(ARG_KERNELS)
    set(dot "")
    if(ARG_DOT)
      set(dot DOT)
    endif()
    adder_tiered_kernels(adder_op_${name} FILES ${ARG_KERNELS} ${dot})
  endif()
  foreach(tier IN LISTS ADDER_TIERS_MATRIX)
    if(ARG_KERNELS_${tier})
      adder_kernels_of_tier(adder_op_${name} adder_op_${name}_own_kernels_${tier} ${tier}
                            ADDER_PARTS ${ARG_KERNELS_${tier}})
    endif()
  endforeach()
  if(ADDER_CUDA_FOUND)
    adder_add_cuda_parts(adder_op_${name} "${ARG_CUDA}" "${ARG_HOPPER}")
  else()
    set(ARG_CUDA_BENCH "")
    set(ARG_CUDA_TEST "")
  endif()
  if(ARG_BENCH OR ARG_CUDA_BENCH)
    add_library(adder_op_${name}_bench OBJECT ${ARG_BENCH} ${ARG_CUDA_BENCH})
    target_link_libraries(adder_op_${name}_bench PRIVATE adder_options)
    set_property(GLOBAL APPEND PROPERTY ADDER_BENCH_PARTS adder_op_${name}_bench)
  endif()
  foreach(op IN LISTS ARG_DEPENDS)
    list(APPEND parts adder_op_${op})
  endforeach()
  set(cuda_parts adder_cuda)
  foreach(op IN ITEMS ${name} LISTS ARG_DEPENDS)
    foreach(part IN ITEMS adder_op_${op}_cuda adder_op_${op}_hopper)
      if(TARGET ${part})
        list(APPEND cuda_parts ${part})
      endif()
    endforeach()
  endforeach()
  if(ARG_TEST)
    adder_add_test(${name}_test SOURCES ${ARG_TEST} PARTS ${parts})
  endif()
  if(ARG_CUDA_TEST)
    adder_add_test(${name}_cuda_test SOURCES ${ARG_CUDA_TEST} PARTS ${parts} ${cuda_parts})
  endif()
endfunction()

# adder_add_cuda_parts(TARGET "CUDA files" "Hopper files"): object libraries TARGET_cuda and
# TARGET_hopper, parts of libadder.
function(adder_add_cuda_parts target cuda hopper)
  if(cuda)
    adder_add_part(${target}_cuda SOURCES ${cuda})
  endif()
  if(hopper)
    adder_add_part(${target}_hopper SOURCES ${hopper})
    set_target_properties(${target}_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
  endif()
endfunction()

# adder_add_part(TARGET SOURCES ...): an object library that is linked into libadder.
function(adder_add_part target)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(${target} OBJECT ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE adder_options)
  set_property(GLOBAL APPEND PROPERTY ADDER_PARTS ${target})
endfunction()

# adder_link_parts(TARGET parts ...): links the parts, their kernels and what they are built on.
function(adder_link_parts target)
  target_link_libraries(${target} PRIVATE adder_options ${ADDER_LINK_LIBRARIES})
  foreach(part IN LISTS ARGN)
    get_target_property(kernels ${part} ADDER_KERNEL_PARTS)
    if(NOT kernels)
      set(kernels "")
    endif()
    target_link_libraries(${target} PRIVATE ${part} ${kernels})
  endforeach()
endfunction()

# adder_add_test(NAME SOURCES ... PARTS ...): a GoogleTest program made of the named parts alone, so
# that one folder can be built and tested without the rest.
function(adder_add_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PARTS" ${ARGN})
  if(NOT ADDER_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  adder_link_parts(${name} ${ARG_PARTS})
  target_link_libraries(${name} PRIVATE adder_test_support GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()

# adder_add_fuzzer(NAME SOURCES ... PARTS ...): SOURCES define LLVMFuzzerTestOneInput; seeds, if
# there are any, are the files of tests/fuzz/NAME. In a build for fuzzing it is the libFuzzer
# program fuzz/NAME_fuzz; in every other one a test that runs the seeds and mutations of them (see
# tests/support/fuzz_main.cc), so that what fuzzing once found stays found.
function(adder_add_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PARTS" ${ARGN})
  if(NOT ADDER_BUILD_TESTS)
    return()
  endif()
  add_executable(${name}_fuzz ${ARG_SOURCES})
  adder_link_parts(${name}_fuzz ${ARG_PARTS})
  if(ADDER_BUILD_FUZZERS)
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                                  ${PROJECT_BINARY_DIR}/fuzz)
    add_dependencies(fuzzers ${name}_fuzz)
  else()
    target_sources(${name}_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/fuzz_main.cc)
    target_link_libraries(${name}_fuzz PRIVATE adder_test_support GTest::gtest)
    add_test(NAME ${name}_fuzz COMMAND ${name}_fuzz tests/fuzz/${name}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  endif()
endfunction()

# adder_add_amx_test(OP SOURCES ... KERNELS ...): a test program OP_amx_test of an operation's AMX
# kernels with the tiles emulated (see src/simd/amx.h), in the namespace tier_amx_emulated.
function(adder_add_amx_test op)
  cmake_parse_arguments(ARG "" "" "SOURCES;KERNELS;DEPENDS" ${ARGN})
  if(NOT ADDER_BUILD_TESTS OR NOT "amx" IN_LIST ADDER_TIERS_MATRIX)
    return()
  endif()
  set(ADDER_TIER_FLAGS_amx_emulated ${ADDER_TIER_FLAGS_avx512})
  adder_kernel_library(adder_op_${op}_kernels_amx_emulated amx_emulated ${ARG_KERNELS})
  target_compile_definitions(adder_op_${op}_kernels_amx_emulated PRIVATE ADDER_AMX_EMULATED)
  set(parts adder_core adder_op_${op} adder_op_${op}_kernels_amx_emulated)
  foreach(other IN LISTS ARG_DEPENDS)
    list(APPEND parts adder_op_${other})
  endforeach()
  adder_add_test(${op}_amx_test SOURCES ${ARG_SOURCES} PARTS ${parts})
endfunction()
