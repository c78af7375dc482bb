#include "xllm/xllm.h"
