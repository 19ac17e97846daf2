// Direct stdio client: official TypeScript SDK 1.x, no gateway in between. It gives the reference
// listing and results that the same server must show through the gateway.
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { runOperation, USAGE_EXIT } from './client_common.mjs';

const usage = 'usage: client_stdio.mjs (list | call NAME JSON_ARGS) -- COMMAND [ARG...]';
const argv = process.argv.slice(2);
const split = argv.indexOf('--');
const [command, ...args] = split < 0 ? [] : argv.slice(split + 1);
if (command === undefined) {
  console.error(usage);
  process.exit(USAGE_EXIT);
}
// The whole environment is passed on: the SDK's default keeps only HOME, PATH and a few others.
const transport = new StdioClientTransport({ command, args, env: process.env, stderr: 'inherit' });
process.exitCode = await runOperation(transport, argv.slice(0, split), usage);
