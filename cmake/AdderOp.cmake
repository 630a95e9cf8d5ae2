# adder_add_op(NAME SOURCES ... [KERNELS ...] [TEST ...] [BENCH ...] [DEPENDS other ops])
#
# One folder per operation. SOURCES are compiled once; KERNELS once per instruction-set tier, each
# into the namespace tier_<name> (see src/core/cpu_tier.h). Defines
#   adder_op_NAME        object library, part of libadder
#   adder_op_NAME_bench  object library, part of the command line tool
#   NAME_test            a test program registered with CTest
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(ADDER_TIERS baseline avx2 avx512)
  set(ADDER_TIER_FLAGS_baseline "")
  set(ADDER_TIER_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(ADDER_TIER_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
else()
  set(ADDER_TIERS baseline)
  set(ADDER_TIER_FLAGS_baseline "")
endif()

# Compiles `files` once per tier; the object libraries go along with `target` wherever it is linked.
function(adder_tiered_kernels target files)
  foreach(tier IN LISTS ADDER_TIERS)
    set(library ${target}_kernels_${tier})
    add_library(${library} OBJECT ${files})
    target_link_libraries(${library} PRIVATE adder_options)
    target_compile_definitions(${library} PRIVATE ADDER_TIER=tier_${tier})
    target_compile_options(${library} PRIVATE ${ADDER_TIER_FLAGS_${tier}} -ffp-contract=fast
                                              -fno-math-errno -fno-trapping-math
                           # g++ 12 reports its own intrinsics' undefined registers.
                           $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized -Wno-maybe-uninitialized>)
    set_property(TARGET ${target} APPEND PROPERTY ADDER_KERNEL_PARTS ${library})
    set_property(GLOBAL APPEND PROPERTY ADDER_PARTS ${library})
  endforeach()
endfunction()

function(adder_add_op name)
  cmake_parse_arguments(ARG "" "" "SOURCES;KERNELS;TEST;BENCH;DEPENDS" ${ARGN})
  adder_add_part(adder_op_${name} SOURCES ${ARG_SOURCES})
  if(ARG_KERNELS)
    adder_tiered_kernels(adder_op_${name} "${ARG_KERNELS}")
  endif()
  if(ARG_BENCH)
    add_library(adder_op_${name}_bench OBJECT ${ARG_BENCH})
    target_link_libraries(adder_op_${name}_bench PRIVATE adder_options)
    set_property(GLOBAL APPEND PROPERTY ADDER_BENCH_PARTS adder_op_${name}_bench)
  endif()
  if(ARG_TEST)
    set(parts adder_core adder_op_${name})
    foreach(other IN LISTS ARG_DEPENDS)
      list(APPEND parts adder_op_${other})
    endforeach()
    adder_add_test(${name}_test SOURCES ${ARG_TEST} PARTS ${parts})
  endif()
endfunction()

# adder_add_part(TARGET SOURCES ...): an object library that is linked into libadder.
function(adder_add_part target)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(${target} OBJECT ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE adder_options)
  set_property(GLOBAL APPEND PROPERTY ADDER_PARTS ${target})
endfunction()

# adder_add_test(NAME SOURCES ... PARTS ...): a GoogleTest program made of the named parts alone, so
# that one folder can be built and tested without the rest.
function(adder_add_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PARTS" ${ARGN})
  if(NOT ADDER_BUILD_TESTS)
    return()
  endif()
  set(kernels "")
  foreach(part IN LISTS ARG_PARTS)
    get_target_property(part_kernels ${part} ADDER_KERNEL_PARTS)
    if(part_kernels)
      list(APPEND kernels ${part_kernels})
    endif()
  endforeach()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE adder_options adder_test_support ${ARG_PARTS} ${kernels}
                                        ${ADDER_LINK_LIBRARIES} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()
