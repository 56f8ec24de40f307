// What the Vercel AI SDK sees. Told as one JSON object; the test beside it judges.
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, Output, streamText, tool } from "ai";
import { z } from "zod";

const task = JSON.parse(process.argv[2]);
const provider = createOpenAICompatible({
  name: "anabranch",
  baseURL: task.base_url,
  apiKey: "EMPTY",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const ask = (model, prompt, more) => ({
  model: provider(model),
  prompt,
  maxOutputTokens: task.list_tokens,
  temperature: 0,
  maxRetries: 0,
  ...more,
});
const counts = (usage) => ({ prompt_tokens: usage.inputTokens, completion_tokens: usage.outputTokens });

async function whole(model, prompt, more) {
  const result = await generateText(ask(model, prompt, { include: { responseBody: true }, ...more }));
  return {
    text: result.text,
    finish_reason: result.finishReason,
    usage: counts(result.usage),
    extra: result.response.body?.anabranch ?? null,
    headers: result.response.headers,
  };
}

async function streamed(model, prompt, more) {
  const seen = { text: "", chunks: 0, finish_reason: null, usage: null, extra: null };
  const result = streamText(ask(model, prompt, { include: { rawChunks: true }, onError: () => {}, ...more }));
  for await (const part of result.fullStream) {
    if (part.type === "text-delta" && part.text) {
      seen.text += part.text;
      seen.chunks += 1;
    } else if (part.type === "raw") {
      seen.extra = part.rawValue?.anabranch ?? seen.extra;
    } else if (part.type === "finish") {
      seen.finish_reason = part.finishReason;
      seen.usage = counts(part.totalUsage);
    } else if (part.type === "error") {
      throw part.error;
    }
  }
  return seen;
}

async function structured(model) {
  const Person = z.object({ name: z.enum(["Ann", "Bob"]), tall: z.boolean() });
  const result = await generateText(
    ask(model, task.json_prompt, { output: Output.object({ schema: Person }), maxOutputTokens: 64 }),
  );
  return result.output;
}

async function failure(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return {
      errors: [APICallError.isInstance(error) ? "APICallError" : error.constructor.name],
      status: error.statusCode,
      message: error.message,
    };
  }
}

const { model, strategy_model } = task;
const short = { maxOutputTokens: task.plain_tokens };
const version = (name) => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
const seen = {
  version: `${version("ai")} with @ai-sdk/openai-compatible ${version("@ai-sdk/openai-compatible")}`,
  plain: await whole(model, task.plain_prompt, short),
  plain_stream: await streamed(model, task.plain_prompt, short),
};
if (strategy_model) {
  [seen.strategy, seen.strategy_stream] = await Promise.all([
    whole(strategy_model, task.list_prompt),
    streamed(strategy_model, task.list_prompt),
  ]);
  seen.parsed = await structured(strategy_model);
  const inputSchema = jsonSchema(task.tool.function.parameters);
  const tools = { weather: tool({ description: task.tool.function.description, inputSchema }) };
  seen.tools = await whole(strategy_model, task.plain_prompt, { ...short, tools });
  seen.unknown = await failure(() =>
    whole(model, task.plain_prompt, { providerOptions: { anabranch: { anabranch: { strategy: "nonsense" } } } }),
  );
}
console.log(JSON.stringify(seen));
