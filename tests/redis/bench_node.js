/* bench_node.js - the same questions asked by npm's rate-limiter-flexible over ioredis: decisions per second one at a time and with 64 in
 * flight, and client CPU per decision. tests/redis/run.sh bench runs it between rows of our own if NODE_PATH leads to both packages
 * (npm install rate-limiter-flexible ioredis). Prints "NAME DECISIONS/S CPU-US" lines. */
"use strict";
const Redis = require("ioredis");
const { RateLimiterRedis } = require("rate-limiter-flexible");

const redis = new Redis(Number(process.env.REDIS_PORT), "127.0.0.1");
const limiter = new RateLimiterRedis({ storeClient: redis, points: 1e9, duration: 3600, keyPrefix: "node" });
const keys = Array.from({ length: 1000 }, (_, i) => "k" + i);
let next = 0;

function key() {
    next = (next + 389) % keys.length;
    return keys[next];
}

async function oneAtATime(count) {
    for (let i = 0; i < count; i++) await limiter.consume(key(), 1);
}

async function inFlight(count) {
    for (let i = 0; i < count; i += 64) {
        const some = [];
        for (let j = 0; j < 64; j++) some.push(limiter.consume(key(), 1));
        await Promise.all(some);
    }
}

function median(values) {
    return values.sort((a, b) => a - b)[values.length >> 1];
}

async function measure(name, run, count, rounds) {
    const rates = [], cpus = [];
    await run(count); /* warm */
    for (let i = 0; i < rounds; i++) {
        const cpu = process.cpuUsage(), start = process.hrtime.bigint();
        await run(count);
        const ns = Number(process.hrtime.bigint() - start), used = process.cpuUsage(cpu);
        rates.push((count * 1e9) / ns);
        cpus.push((used.user + used.system) / count);
    }
    console.log(name + " " + median(rates).toFixed(0) + " " + median(cpus).toFixed(2));
}

(async () => {
    await measure("one-at-a-time", oneAtATime, 1000, 7);
    await measure("64-in-flight", inFlight, 6400, 7);
    redis.disconnect();
})();
