#!/bin/sh
# Fuzz json_texts.cpp for $1 seconds, then merge what was found into corpus/. Run in an environment with xllm-capi.
set -e
cd "$(dirname "$0")"
package=../../../packages/xllm-capi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
clang++ -std=c++20 -g1 -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -pthread \
    -DXLLM_PACKAGE_VERSION='"fuzz"' -D_GNU_SOURCE -I"$package/include" -I"$package/csrc" \
    "$package"/csrc/*.cpp json_texts.cpp -ldl -o "$work/fuzz"
cat > "$work/python" <<PYTHON
#!/bin/sh
shift 3
exec "${PYTHON:-python}" -P "$PWD/../obedient_engine.py" "\$@"
PYTHON
chmod +x "$work/python"
mkdir "$work/found"
export XLLM_PYTHON="$work/python"
"$work/fuzz" -max_total_time="$1" -artifact_prefix="$PWD/" -max_len=2048 -timeout=300 -dict=json.dict -print_final_stats=1 "$work/found" corpus
"$work/fuzz" -merge=1 -max_len=2048 corpus "$work/found"
