// The Runner of the loopback target: it writes down what a walk issues; session.cpp issues it, op by op, over all virtual ranks.
#pragma once

#include "host/target.hpp"
