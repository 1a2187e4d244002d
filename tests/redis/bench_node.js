/* bench_node.js - the same questions asked by npm's rate-limiter-flexible over ioredis. tests/redis/run.sh bench runs it beside rows of its
 * own if NODE_PATH leads to both packages (npm install rate-limiter-flexible ioredis). Reads lines "IN-FLIGHT DECISIONS", and prints for
 * each "DECISIONS/S CPU-US", the latter of this process for each decision. */
"use strict";
const readline = require("readline");
const Redis = require("ioredis");
const { RateLimiterRedis } = require("rate-limiter-flexible");

const redis = new Redis(Number(process.env.REDIS_PORT), "127.0.0.1");
const limiter = new RateLimiterRedis({ storeClient: redis, points: 1e9, duration: 3600, keyPrefix: "node" });
const keys = Array.from({ length: 1000 }, (_, i) => "k" + i);
let next = 0;

function take() {
    next = (next + 389) % keys.length;
    return limiter.consume(keys[next], 1);
}

async function run(inFlight, count) {
    for (let i = 0; i < count; i += inFlight) {
        if (inFlight === 1) {
            await take();
            continue;
        }
        await Promise.all(Array.from({ length: inFlight }, take));
    }
}

(async () => {
    for await (const line of readline.createInterface({ input: process.stdin })) {
        const [inFlight, count] = line.split(" ").map(Number);
        const cpu = process.cpuUsage(), start = process.hrtime.bigint();
        await run(inFlight, count);
        const ns = Number(process.hrtime.bigint() - start), used = process.cpuUsage(cpu);
        console.log(((count * 1e9) / ns).toFixed(0) + " " + ((used.user + used.system) / count).toFixed(2));
    }
    redis.disconnect();
})();
