// The tests' precompiled header, as common/core/precompiled.h is for all sources.
#include <gtest/gtest.h>

#include "core/precompiled.h"
