// What OpenAI's own client for Node sees. Told as one JSON object; the test beside it judges.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { VERSION } from "openai/version";
import { z } from "zod";

const task = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: task.base_url, apiKey: "EMPTY", maxRetries: 0 });
const ask = (model, prompt, more) => ({
  model,
  messages: [{ role: "user", content: prompt }],
  max_tokens: task.list_tokens,
  temperature: 0,
  ...more,
});

async function whole(model, prompt, more) {
  const { data, response } = await client.chat.completions.create(ask(model, prompt, more)).withResponse();
  const [choice] = data.choices;
  return {
    text: choice.message.content,
    finish_reason: choice.finish_reason,
    usage: data.usage,
    extra: data.anabranch ?? null,
    headers: Object.fromEntries(response.headers),
  };
}

async function streamed(model, prompt, more) {
  const seen = { text: "", chunks: 0, finish_reason: null, usage: null, extra: null };
  const stream = await client.chat.completions.create(
    ask(model, prompt, { stream: true, stream_options: { include_usage: true }, ...more }),
  );
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    if (choice?.delta?.content) {
      seen.text += choice.delta.content;
      seen.chunks += 1;
    }
    seen.finish_reason = choice?.finish_reason ?? seen.finish_reason;
    seen.usage = chunk.usage ?? seen.usage;
    seen.extra = chunk.anabranch ?? seen.extra;
  }
  return seen;
}

async function helper(model, prompt) {
  const runner = client.chat.completions.stream(ask(model, prompt));
  let chunks = 0;
  runner.on("content", () => (chunks += 1));
  const completion = await runner.finalChatCompletion();
  const [choice] = completion.choices;
  return { text: choice.message.content, chunks, finish_reason: choice.finish_reason };
}

async function parsed(model) {
  const Person = z.object({ name: z.enum(["Ann", "Bob"]), tall: z.boolean() });
  const completion = await client.chat.completions.parse(
    ask(model, task.json_prompt, { response_format: zodResponseFormat(Person, "person"), max_tokens: 64 }),
  );
  return completion.choices[0].message.parsed;
}

async function responses(model, prompt) {
  const seen = { text: "", chunks: 0, status: null, usage: null };
  const stream = await client.responses.create({
    model,
    input: prompt,
    max_output_tokens: task.list_tokens,
    temperature: 0,
    stream: true,
  });
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") {
      seen.text += event.delta;
      seen.chunks += 1;
    }
    if (event.type === "response.completed" || event.type === "response.incomplete") {
      seen.status = event.response.status;
      seen.usage = event.response.usage;
    }
  }
  return seen;
}

async function failure(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return { errors: [error.constructor.name], status: error.status, code: error.code, message: error.message };
  }
}

const { model, strategy_model } = task;
const short = { max_tokens: task.plain_tokens };
const seen = {
  version: VERSION,
  models: (await client.models.list()).data.map(({ id }) => id),
  plain: await whole(model, task.plain_prompt, short),
  plain_stream: await streamed(model, task.plain_prompt, short),
};
if (strategy_model) {
  [seen.strategy, seen.strategy_stream, seen.helper, seen.responses] = await Promise.all([
    whole(strategy_model, task.list_prompt),
    streamed(strategy_model, task.list_prompt),
    helper(strategy_model, task.list_prompt),
    responses(strategy_model, task.list_prompt),
  ]);
  seen.parsed = await parsed(strategy_model);
  seen.tools = await whole(strategy_model, task.plain_prompt, { ...short, tools: [task.tool] });
  seen.unknown = await failure(() => whole(model, task.plain_prompt, { anabranch: { strategy: "nonsense" } }));
  seen.missing = await failure(() => client.models.retrieve("no-such-model"));
}
console.log(JSON.stringify(seen));
