// What matrix_ts1.mjs and matrix_ts2.mjs share: the actions of the matrix, over whatever client an
// adapter opens. Each action has a connection of its own and a time limit; none waits for another.
//
// The plan has a member for each action to try; see loadtest/src/matrix/plan.rs. Prints one line of
// JSON: for each action `{ok, detail}`, and where it failed `error: {code?, message}` or `timeout`.
import { setTimeout as sleep } from 'node:timers/promises';

const ACTION_MS = 10_000;
// A cancelled call that takes longer than this to end was not cancelled but waited for.
const CANCEL_MS = 1_000;
const TOUCHES = 3;

class Refused extends Error {}

function check(holds, message) {
  if (!holds) throw new Error(message);
}

function textOf(result) {
  const text = (result.content ?? []).map((block) => block.text ?? `<${block.type}>`).join('\n');
  if (result.isError) throw new Refused(text);
  return text;
}

async function call(peer, { tool, arguments: args = {} }, options) {
  return textOf(await peer.call(tool, args, options));
}

const ACTIONS = {
  async list(peer, { expect }) {
    const names = (await peer.list()).map((tool) => tool.name);
    const missing = expect.filter((name) => !names.includes(name));
    check(missing.length === 0, `not listed: ${missing.join(', ')}`);
    return `${names.length} tools`;
  },

  async call(peer, plan) {
    const text = await call(peer, plan);
    check(text.includes(plan.text), `unexpected text: ${text}`);
    return text.slice(0, 60);
  },

  async progress(peer, plan) {
    const seen = [];
    let answered = false;
    await call(peer, plan, { onprogress: ({ progress }) => answered || seen.push(progress) });
    answered = true;
    check(seen.length >= 2, `${seen.length} progress notifications before the result`);
    check(seen.every((value, at) => at === 0 || value > seen[at - 1]), `progress does not rise: ${seen}`);
    return `progress ${seen.join(', ')}`;
  },

  async cancel(peer, plan) {
    const count = async () => (plan.count === undefined ? 0 : Number(await call(peer, plan.count)));
    const before = await count();
    const controller = new AbortController();
    const slow = call(peer, plan, { signal: controller.signal }).then(
      (text) => `it was answered: ${text}`,
      () => undefined,
    );
    await sleep(plan.after_ms);
    const aborted = performance.now();
    controller.abort('the user changed their mind');
    const answer = await slow;
    check(answer === undefined, answer);
    const ended = Math.round(performance.now() - aborted);
    check(ended <= CANCEL_MS, `the call ended ${ended} ms after it was cancelled`);
    const text = await call(peer, plan.then);
    check(text.includes(plan.then.text), `the next call answers: ${text}`);
    if (plan.count === undefined) return 'the call ended, the next one works';
    for (let tries = 0; (await count()) <= before; tries++) {
      check(tries < 50, 'the server did not notice');
      await sleep(100);
    }
    return 'the server noticed';
  },

  async elicit(peer, plan) {
    const asked = [];
    peer.answer = (params) => {
      asked.push(params);
      return { action: 'accept', content: plan.answer };
    };
    const text = await call(peer, plan);
    check(asked.length === 1, `the handler was called ${asked.length} times`);
    const fields = Object.keys(asked[0].requestedSchema?.properties ?? {});
    check(plan.fields.every((field) => fields.includes(field)), `the form asked for ${fields.join(', ')}`);
    check(text.includes(plan.text), `unexpected text: ${text}`);
    return text.slice(0, 60).replaceAll('\n', ' ');
  },

  async subscribe(peer, plan) {
    let updated;
    const update = new Promise((resolve) => (updated = resolve));
    const end = await peer.subscribe(plan.uri, (uri) => uri === plan.uri && updated(true));
    try {
      for (let tries = 0; tries < TOUCHES; tries++) {
        // The legacy era's GET stream may open after the subscription was answered.
        await sleep(500);
        let text = await call(peer, plan.touch);
        if (!text.includes(plan.touch.text)) text = await call(peer, plan.touch);
        check(text.includes(plan.touch.text), `the update was not made: ${text}`);
        if (await Promise.race([update, sleep(1_500, false)])) return `updated after ${tries + 1} touches`;
      }
      throw new Error('subscribed, but no update arrived');
    } finally {
      await end();
    }
  },

  async read(peer, plan) {
    const text = (await peer.read(plan.uri)).contents.map((content) => content.text).join('\n');
    check(text.includes(plan.text), `unexpected content: ${text.slice(0, 80)}`);
    return text.slice(0, 60).replaceAll('\n', ' ');
  },

  async prompt(peer, plan) {
    const { messages } = await peer.prompt(plan.name, plan.arguments);
    const text = messages.map((message) => message.content.text).join('\n');
    check(text.includes(plan.text), `unexpected text: ${text}`);
    return text.slice(0, 60);
  },
};

async function attempt(open, act, plan) {
  const late = new AbortController();
  const limit = sleep(ACTION_MS, { ok: false, timeout: true, detail: `no end within ${ACTION_MS} ms` }, late);
  let peer;
  const work = (async () => {
    try {
      peer = await open();
      return { ok: true, era: peer.era(), detail: await act(peer, plan) };
    } catch (error) {
      const message = error?.message ?? String(error);
      // A failed check is ours; all else was said by the other side or by the SDK.
      const own = error?.constructor === Error && error.code === undefined;
      return { ok: false, era: peer?.era(), detail: message, ...(own ? {} : { error: { code: error.code, message } }) };
    }
  })();
  const outcome = await Promise.race([work, limit]);
  late.abort();
  await Promise.race([peer?.close().catch(() => {}), sleep(1_000)]);
  return outcome;
}

// `open(url, token)` gives `{era, list, call, subscribe, read, prompt, close}`, and asks its `answer`.
export async function run(open) {
  const [url, token, plan] = process.argv.slice(2);
  if (plan === undefined) {
    console.error('usage: matrix_ts?.mjs URL TOKEN PLAN');
    process.exit(2);
  }
  const headers = token === '' ? {} : { Authorization: `Bearer ${token}` };
  const outcomes = {};
  for (const [name, part] of Object.entries(JSON.parse(plan))) {
    outcomes[name] = await attempt(() => open(new URL(url), headers), ACTIONS[name], part);
  }
  process.stdout.write(JSON.stringify(outcomes) + '\n', () => process.exit(0));
}
