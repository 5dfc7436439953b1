#pragma once
#include "comm/comm.h"
namespace ultrascale {
inline bool demo_route(const Communicator&) { return true; }
}
