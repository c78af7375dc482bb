#!/bin/sh
# Run the storms, the deaths and the many-threads example under ThreadSanitizer. In an environment with xllm-capi.
set -e
cd "$(dirname "$0")"
package=../../packages/xllm-capi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=c++20 -g1 -O1 -fsanitize=thread -pthread -D_GNU_SOURCE -I$package/include -I$package/csrc"
for source in "$package"/csrc/*.cpp; do
    ${CXX:-c++} $flags -DXLLM_PACKAGE_VERSION='"tsan"' -c "$source" -o "$work/$(basename "$source").o"
done
cat > "$work/python" <<PYTHON
#!/bin/sh
shift 3
exec "${PYTHON:-python}" -P "$PWD/obedient_engine.py" "\$@"
PYTHON
chmod +x "$work/python"
export XLLM_PYTHON="$work/python" TSAN_OPTIONS="halt_on_error=1 exitcode=66"
run() {
    source=$1
    shift
    ${CXX:-c++} $flags "$source" "$work"/*.o -ldl -o "$work/program"
    echo "$(basename "$source") $*"
    "$work/program" "$@"
}
run programs/storms.cpp 100 50
run programs/death.cpp
run programs/pooling.cpp
run "$package/examples/many_threads.cpp" 100 50 "say a b"
echo "no data race"
