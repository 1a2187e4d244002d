/* A gRPC client of another implementation, for grpc.py: does what its arguments say, prints what came as JSON.

   grpc_client.js ADDRESS PROTO SCENARIO: "limits", or "say N KEY" for N unary calls (no KEY: no metadata). */
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const protobuf = require("protobufjs");

const [address, proto, scenario, count, user] = process.argv.slice(2);
const { limited } = grpc.loadPackageDefinition(loader.loadSync(proto));
const client = new limited.Limited(address, grpc.credentials.createInsecure());

const { root } = protobuf.parse(`syntax = "proto3"; package google.rpc;
    message Any { string type_url = 1; bytes value = 2; }
    message Duration { int64 seconds = 1; int32 nanos = 2; }
    message RetryInfo { Duration retry_delay = 1; }
    message Status { int32 code = 1; string message = 2; repeated Any details = 3; }`);
const type = (name) => root.lookupType("google.rpc." + name);

function meta(key) {
    const m = new grpc.Metadata();
    if (key)
        m.set("x-user", key);
    return m;
}

const until = () => ({ deadline: Date.now() + 20000 });

function failure(error) {
    const out = { code: error.code, text: error.details, trailers: {} };
    for (const [name, value] of Object.entries(error.metadata ? error.metadata.getMap() : {}))
        if (!name.endsWith("-bin"))
            out.trailers[name] = value;
    const bytes = error.metadata && error.metadata.get("grpc-status-details-bin")[0];
    if (bytes) {
        const status = type("Status").decode(bytes);
        const info = type("RetryInfo").decode(status.details[0].value);
        out.rich = { code: status.code, text: status.message, type: status.details[0].typeUrl,
                     ms: Number(info.retryDelay.seconds) * 1000 + info.retryDelay.nanos / 1e6 };
    }
    return out;
}

const say = (key) => new Promise((done) =>
    client.Say({ text: "hi" }, meta(key), until(), (error, answer) =>
        done(error ? failure(error) : { code: 0, text: answer.text })));

const numbers = (key, number) => new Promise((done) => {
    const got = [];
    const call = client.Count({ number }, meta(key), until());
    call.on("data", (message) => got.push(message.number));
    call.on("error", (error) => done({ ...failure(error), got }));
    call.on("status", (status) => status.code === 0 && done({ code: 0, got }));
});

/* A stream that stays open: send resolves to the text that came back, or null if it ended instead. */
function echo(key) {
    const call = client.Echo(meta(key), until());
    let answer = () => {};
    const ended = new Promise((done) => {
        call.on("error", (error) => { done(failure(error)); answer(null); });
        call.on("status", (status) => { if (status.code === 0) { done({ code: 0 }); answer(null); } });
    });
    call.on("data", (message) => answer(message.text));
    return {
        send: (text) => new Promise((done) => { answer = done; call.write({ text }); }),
        end: () => { call.end(); return ended; },
    };
}

async function times(n, f) {
    const all = [];
    for (let i = 0; i < n; i++)
        all.push(await f(i));
    return all;
}

async function limits() {
    const out = {};
    out.ann = await times(6, () => say("ann"));
    out.bob = await times(4, () => say("bob"));
    out.address = await times(4, () => say());
    out.together = await Promise.all(Array.from({ length: 20 }, () => say("carol")));
    out.numbers = await times(4, () => numbers("ann", 5));
    const stream = echo("ann");
    out.before = await stream.send("before");
    const other = echo("ann");
    out.other = await other.send("other");
    out.other_end = await other.end();
    out.refused = await times(3, () => echo("ann").end());
    out.after = await times(5, (i) => stream.send("after " + i));
    out.end = await stream.end();
    return out;
}

(scenario === "limits" ? limits() : times(Number(count), () => say(user))).then((out) => {
    console.log(JSON.stringify(out));
    client.close();
});
