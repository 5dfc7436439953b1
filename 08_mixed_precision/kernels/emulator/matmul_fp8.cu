// There are no tensor cores on the CPU (common/emulator): its own product.
#include "../ops_matmul_fp8.cpp"
