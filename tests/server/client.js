/* Asks the server through ioredis, for clients.py and restart.py: prints what it found wrong, "ok" if nothing.

   client.js PORT UNIX-PATH PASSWORD-PORT PASSWORD
   client.js steadily PORT     one call after another, until standard input ends */
"use strict";
const Redis = require("ioredis");

const [port, path, lockedPort, password] = process.argv.slice(2);
const wrong = [];
const expect = (what, got, wanted) => {
    if (JSON.stringify(got) !== JSON.stringify(wanted))
        wrong.push(`${what}: got ${JSON.stringify(got)}, wanted ${JSON.stringify(wanted)}`);
};
const failure = (promise) => promise.then((value) => value, (error) => error.message);

async function main() {
    const redis = new Redis({ port, host: "127.0.0.1", db: 0, connectionName: "check", enableReadyCheck: true });
    expect("PING", await redis.ping(), "PONG");
    expect("ECHO", await redis.echo("ünï"), "ünï");
    expect("THROTTLE", await redis.call("THROTTLE", "js:a", 5, 1, 3600), [1, 5, 4, 3600, 0]);
    expect("CL.THROTTLE", await redis.call("CL.THROTTLE", "js:b", 5, 1, 3600), [0, 6, 5, -1, 3600]);
    expect("TAKE", await redis.call("TAKE", "js:c", "1/h burst 3", 2), [1, 3, 1, 7200000, 0, "OK"]);
    expect("an error", await failure(redis.call("TAKE", "js:c", "much")),
           "ERR a limit is a text as \"10/s burst 20\", or @ and a rule's name");
    expect("a rule", await redis.call("RULE", "login", "js:d"), [1, 2, 1, 3600000, 0, "OK"]);
    expect("all or none", (await redis.call("TAKEALL", "js:e", "@login", 1, "js:f", "@login", 3)).map((a) => [a[0], a[5]]),
           [[0, "SKIPPED"], [0, "NEVER"]]);

    const pipeline = redis.pipeline();
    for (let i = 0; i < 500; i++)
        pipeline.call("TAKE", "js:p", "1/d burst 300");
    expect("a pipeline of 500", (await pipeline.exec()).filter(([error, a]) => !error && a[0] === 1).length, 300);

    expect("EVAL is unknown", await failure(redis.eval("return 1", 0)), "ERR unknown command 'eval'");
    expect("another database", await failure(redis.select(1)), "ERR DB index is out of range: there is one, 0");
    await redis.quit();

    const automatic = new Redis({ path, enableAutoPipelining: true });
    const answers = await Promise.all(Array.from({ length: 200 }, () => automatic.call("TAKE", "js:auto", "1/d burst 150")));
    expect("200 at once over a unix socket", answers.filter((a) => a[0] === 1).length, 150);
    automatic.disconnect();

    const locked = new Redis({ port: lockedPort, host: "127.0.0.1", password });
    expect("with the password", await locked.call("THROTTLE", "js:a", 5, 1, 3600), [1, 5, 4, 3600, 0]);
    locked.disconnect();
    const user = new Redis({ port: lockedPort, host: "127.0.0.1", username: "default", password });
    expect("with user and password", await user.ping(), "PONG");
    user.disconnect();
    return "ok";
}

async function steadily() {
    const redis = new Redis({ port: process.argv[3], host: "127.0.0.1" });
    let going = true, answered = 0;
    process.stdin.on("end", () => { going = false; }).resume();
    await redis.ping();
    console.log("begun");
    while (going) {
        const answer = await redis.call("PEEK", "steady", "1/h");
        expect("PEEK", answer, [1, 1, 1, 0, 0, "OK"]);
        answered++;
    }
    redis.disconnect();
    return `ok: ${answered} answered`;
}

(port === "steadily" ? steadily() : main()).then((said) => {
    console.log(wrong.length ? wrong.join("\n") : said);
    process.exit(wrong.length ? 1 : 0);
}, (error) => {
    console.log(error.stack);
    process.exit(1);
});
