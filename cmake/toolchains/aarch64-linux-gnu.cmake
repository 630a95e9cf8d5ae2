# Cross-compiles for aarch64 on Debian: g++ as its package g++-12-aarch64-linux-gnu brings it, the
# libraries as packages of the foreign architecture arm64, and qemu-user to run what was built. The
# processor that it emulates is the environment variable QEMU_CPU, "max" unless set.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
