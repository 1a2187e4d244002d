#!/bin/sh
# Builds server and client of this example, with what protoc generates, into a folder: build.sh DIR
set -e
here=$(dirname "$0")
out=${1:?usage: build.sh DIR}
mkdir -p "$out"
protoc -I "$here" --cpp_out="$out" --grpc_out="$out" \
    --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "$here/limited.proto"
compile() {
    "${CXX:-c++}" -std=c++17 ${CXXFLAGS:--O1} -I "$here/../.." -isystem "$out" "$@"
}
compile -c "$out/limited.pb.cc" -o "$out/limited.pb.o"
compile -c "$out/limited.grpc.pb.cc" -o "$out/limited.grpc.pb.o"
for program in server client; do
    compile $WARNINGS "$here/$program.cc" "$out/limited.pb.o" "$out/limited.grpc.pb.o" \
        -o "$out/$program" $(pkg-config --libs grpc++ protobuf) -lhiredis -pthread
done
