// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
// An I2C bus with chips that only remember: what is written to a register is read from it again. Unlike the kernel's
// i2c-stub, which speaks SMBus only, it takes plain I2C transfers, as the controllers of real boards do.
//
//   modprobe i2c-chips bytes=0x68 words=0x40,0x41
//
// `bytes`: registers of 8 bits, and the address advances with each byte. `words`: registers of 16 bits, high byte first
// (what i2cset and i2cget call a word has the bytes the other way around).
#include <linux/i2c.h>
#include <linux/module.h>

#define CHIPS 8

static unsigned short bytes[CHIPS], words[CHIPS];
static unsigned int byte_chips, word_chips;
module_param_array(bytes, ushort, &byte_chips, 0444);
MODULE_PARM_DESC(bytes, "addresses of chips with 8-bit registers");
module_param_array(words, ushort, &word_chips, 0444);
MODULE_PARM_DESC(words, "addresses of chips with 16-bit registers");

struct chip {
	unsigned short address;
	u8 width;
	u16 position;
	u8 memory[512];
};

static struct chip chips[2 * CHIPS];
static unsigned int chip_count;

static struct chip *chip_at(u16 address)
{
	unsigned int i;

	for (i = 0; i < chip_count; i++)
		if (chips[i].address == address)
			return &chips[i];
	return NULL;
}

static int transfer(struct i2c_adapter *adapter, struct i2c_msg *messages, int count)
{
	int i, j;

	for (i = 0; i < count; i++) {
		struct i2c_msg *message = &messages[i];
		struct chip *chip = chip_at(message->addr);

		if (!chip)
			return -ENXIO;
		for (j = 0; j < message->len; j++) {
			if (message->flags & I2C_M_RD)
				message->buf[j] = chip->memory[chip->position++ % (256 * chip->width)];
			else if (j == 0)
				chip->position = message->buf[0] * chip->width;
			else
				chip->memory[chip->position++ % (256 * chip->width)] = message->buf[j];
		}
	}
	return count;
}

static u32 functionality(struct i2c_adapter *adapter)
{
	return I2C_FUNC_I2C | (I2C_FUNC_SMBUS_EMUL & ~I2C_FUNC_SMBUS_QUICK);
}

static const struct i2c_algorithm algorithm = {
	.master_xfer = transfer,
	.functionality = functionality,
};

static struct i2c_adapter adapter = {
	.owner = THIS_MODULE,
	.algo = &algorithm,
	.name = "chips that remember",
};

static void add(const unsigned short *addresses, unsigned int count, u8 width)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		chips[chip_count].address = addresses[i];
		chips[chip_count].width = width;
		chip_count++;
	}
}

static int __init start(void)
{
	add(bytes, byte_chips, 1);
	add(words, word_chips, 2);
	return i2c_add_adapter(&adapter);
}

static void __exit end(void)
{
	i2c_del_adapter(&adapter);
}

module_init(start);
module_exit(end);
MODULE_DESCRIPTION("I2C chips that remember what is written to them");
MODULE_LICENSE("Dual MIT/GPL");
