// The main function of every test program but those that cannot do without NVRTC (main_nvrtc.cpp).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  return doctest::Context(argc, argv).run();
}
